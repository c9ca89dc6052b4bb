"""Batches of a stage on the mesh: every device is given its own part, and what was trained on is counted."""

import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from rope_jax.attention.token_order import dealt
from rope_jax.experiment.recipe.batch import Batch
from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.corpus import Corpus
from rope_jax.experiment.recipe.record import TrainedRecord
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.parallel import batch_sharding

TRAINED_ON = ("inputs", "targets", "weights", "positions", "segments")


class Feed:
    """The batches of one stage, in an order that is the same on any mesh and goes on exactly where it was left.

    Every process makes the whole batch, which is cheap beside a step, and hands its devices what is theirs.

    Example:
      with Feed(config, 0, mesh, corpus) as feed:
          batch = next(feed)

    Args:
      config: the run.
      index: of the stage.
      mesh: from `make_mesh`.
      corpus: the documents to train on.
      resumed: what `state` gave when it was left; None: from the start.

    Attributes:
      record: what the stage has been trained on.
      seconds: spent on batches so far.
    """

    def __init__(
        self, config: RunConfig, index: int, mesh: Mesh, corpus: Corpus, resumed: dict[str, Any] | None = None
    ) -> None:
        stage = config.stages[index]
        recipe = stage.data or config.data
        self.record = TrainedRecord(recipe, corpus)
        self.seconds = 0.0
        self._order, self._sharding = config.compute.context_order, batch_sharding(mesh)
        self._shards = dict(mesh.shape)["context"]
        target = (stage.pose_target or stage.length) if recipe.pose_chunks else None
        self._batches = batches(
            recipe, length=stage.length, rows=config.rows(stage), target_length=target, corpus=corpus
        )
        if resumed is not None:
            self._batches.set_state(resumed["position"])
            self.record.resume(resumed["record"])

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *exception: object) -> None:
        self._batches.close()

    def __next__(self) -> dict[str, jax.Array]:
        """The next batch as the step takes it: global arrays over the mesh."""
        start = time.perf_counter()
        batch: Batch = next(self._batches)
        self.record.add(batch)
        placed = on_mesh({name: getattr(batch, name) for name in TRAINED_ON}, self._sharding, self._shards, self._order)
        self.seconds += time.perf_counter() - start
        return placed

    def state(self) -> dict[str, Any]:
        """Where it stands and what it has counted, as JSON can hold it."""
        return {"position": self._batches.get_state(), "record": self.record.as_dict()}


def on_mesh(arrays: dict[str, np.ndarray], sharding: NamedSharding, shards: int, order: Any) -> dict[str, jax.Array]:
    """Host arrays [rows, length], the same in every process, as global ones, tokens dealt out over `context`."""
    places = dealt(next(iter(arrays.values())).shape[1], shards, order)

    def placed(whole: np.ndarray) -> jax.Array:
        ordered = whole if order == "contiguous" else whole[:, places]
        # Each device asks for its own part, whichever rows and tokens those are.
        return jax.make_array_from_callback(ordered.shape, sharding, lambda part: ordered[part])

    return {name: placed(array) for name, array in arrays.items()}

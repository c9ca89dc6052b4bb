"""The loss of held-out windows at several lengths, on the same mesh and by the same code as training."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from rope_jax.experiment.data import Document, opened
from rope_jax.experiment.recipe.held_out import evaluation_windows
from rope_jax.experiment.training.feed import on_mesh
from rope_jax.experiment.training.loss import divided_losses, shards
from rope_jax.experiment.training.start import Run
from rope_jax.parallel import batch_sharding


def build_evaluation(graphdef: nnx.GraphDef, *, loss_chunk: int, order: str = "any") -> Any:
    """The jitted function (params, schedules, batch) -> (loss and number of targets, then the same of the tail).

    The batch has "weights" and "tail" to sum by.

    Args:
      graphdef: the decoder's structure.
      loss_chunk: tokens of a device whose logits are held at once.
      order: of the tokens, as `attend` takes it.
    """

    def evaluation(params: PyTree, schedules: Any, batch: dict[str, Array]) -> Array:
        model = nnx.merge(graphdef, params)
        hidden = model.hidden(batch["inputs"], schedules, positions=batch["positions"], order=order)
        losses = divided_losses(hidden, model.unembed, batch["targets"], loss_chunk, shards())
        kinds = (batch["weights"], batch["tail"])
        return jnp.stack([total for kind in kinds for total in (jnp.sum(losses * kind), jnp.sum(kind))])

    return jax.jit(evaluation)


class HeldOut:
    """Windows of held-out text, and their losses under any weights and schedules.

    The windows of a shorter length are the ends of those of the longest, so all lengths end at the same targets; the
    loss over the last quarter of the shortest length, `tail`, is therefore one of the same targets everywhere.

    Args:
      run: the run.
      documents: held out.
      graphdef: the decoder's structure.
      mesh: from `make_mesh`.
      bos: the token that opens every window; None: none.
    """

    def __init__(
        self, run: Run, documents: Sequence[Document], graphdef: nnx.GraphDef, mesh: Mesh, bos: int | None
    ) -> None:
        config = run.config
        self._config, self._mesh, self._bos = config, mesh, bos
        self.longest = max((*run.lengths, *(stage.length for stage in config.stages)))
        self._windows = evaluation_windows(documents, self.longest, config.evaluate.windows)
        self._tail = max(run.shortest // 4, 1)
        self._evaluation = build_evaluation(graphdef, loss_chunk=config.compute.loss_chunk, order="contiguous")

    def losses(self, params: PyTree, schedules: Any, length: int) -> dict[str, float]:
        """Mean loss in nats a target: of whole windows of a length, and of their last targets.

        Args:
          params: the weights.
          schedules: what the decoder is called with at that length.
          length: tokens that are read.
        """
        windows = opened(self._windows[:, self.longest - length :], self._bos)
        sharding, sizes = batch_sharding(self._mesh), dict(self._mesh.shape)
        ways = sizes["data"] * sizes["fsdp"]
        rows = max(1, self._config.evaluate.batch * self.longest // length)
        rows = -(-min(rows, len(windows)) // ways) * ways
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
        tail = (np.arange(length) >= length - self._tail).astype(np.float32)
        sums = np.zeros(4)
        for start in range(0, len(windows), rows):
            # The last call is filled up with copies that weigh nothing, so that one shape is compiled.
            rising = np.arange(start, start + rows)
            part = windows[np.minimum(rising, len(windows) - 1)]
            weights = np.broadcast_to((rising < len(windows)).astype(np.float32)[:, None], (rows, length))
            arrays = {"inputs": part[:, :-1], "targets": part[:, 1:], "positions": positions}
            arrays |= {"weights": weights, "tail": weights * tail}
            batch = on_mesh(arrays, sharding, sizes["context"], self._config.compute.context_order)
            sums += np.asarray(jax.device_get(self._evaluation(params, schedules, batch)), np.float64)
        return {"loss": sums[0] / sums[1], "tail": sums[2] / sums[3]}

"""What a run starts from: the model of its settings, to be drawn anew, or that of a checkpoint, to be trained on."""

import dataclasses
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from rope_jax.experiment.config import ExperimentConfig, TrainConfig
from rope_jax.experiment.model import Subject
from rope_jax.experiment.published import Checkpoint, subject_of
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.spec import ModelRope


@dataclass(frozen=True, eq=False)
class Run:
    """A run's settings, and the model that they are about.

    Args:
      config: the settings.
      subject: the model before the first stage: how it turns and, for a checkpoint, its shape.
    """

    config: RunConfig
    subject: Subject

    @property
    def starts_trained(self) -> bool:
        """Whether the weights come from a checkpoint."""
        return self.subject.published is not None

    @property
    def shortest(self) -> int:
        """The length that every stage is evaluated at: that of the first, or the checkpoint's own if that is below."""
        first = self.config.stages[0].length
        return min(first, self.subject.own_length or first)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that every stage is evaluated at, shortest first."""
        return tuple(sorted({self.shortest, *self.config.evaluate.lengths}))

    @property
    def longest(self) -> int:
        """The longest row of all, trained or evaluated, in positions."""
        reached = (max(stage.length, stage.pose_target or 0) for stage in self.config.stages)
        return max(*self.lengths, *reached)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What the weights are read from, none of which it has read yet; None where they are drawn."""
        return Checkpoint(experiment(self.config), self.subject) if self.starts_trained else None


def experiment(config: RunConfig) -> ExperimentConfig:
    """The model of a run as a sweep would state it."""
    train = TrainConfig(length=64, steps=0) if config.model.checkpoint else TrainConfig(length=64)
    return ExperimentConfig(name=config.name, model=config.model, train=train)


def started(config: RunConfig) -> Run:
    """A run with its model; of a checkpoint, the configuration is read and no weights.

    Raises:
      ValueError, TypeError, OSError: no such checkpoint, or one that cannot be read.
    """
    return Run(config, subject_of(experiment(config)))


def rebased(subject: Subject, theta: float) -> Subject:
    """The model with another base under whatever edits its frequencies."""

    def changed(rope: ModelRope | None) -> ModelRope | None:
        specs = {} if rope is None else rope.specs
        based = {name: None if spec is None else dataclasses.replace(spec, theta=theta) for name, spec in specs.items()}
        return None if rope is None else dataclasses.replace(rope, specs=based)

    return dataclasses.replace(subject, rope=changed(subject.rope), own_rope=changed(subject.own_rope))


def read_weights(checkpoint: Checkpoint, places: PyTree) -> PyTree:
    """The weights of a checkpoint where they are to lie; the whole of them passes through the memory of every host.

    Args:
      checkpoint: of the run.
      places: tree of `NamedSharding`, as the parameters are.
    """
    # The host may have room for all of them where one of its accelerators has not.
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        leaves, tree = jax.tree.flatten(checkpoint.params)
    del checkpoint
    shardings = jax.tree.leaves(places)
    placed = []
    for sharding in shardings:
        # Taken out of the list, so that a parameter is in memory twice only while it is placed.
        placed.append(_placed(np.asarray(leaves.pop(0)), sharding))
    return jax.tree.unflatten(tree, placed)


def _placed(whole: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])

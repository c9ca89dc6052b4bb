"""What turns queries and keys in every stage: the base as it stands there, and the stage's method on top."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from rope_jax.experiment.config import ExperimentConfig, TrainConfig
from rope_jax.experiment.methods import parse_method
from rope_jax.experiment.model import Subject, fresh_subject
from rope_jax.experiment.training.frequencies import Schedules
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.scaling import chain
from rope_jax.schedule import FrequencySchedule
from rope_jax.spec import RopeSpec


def theta_of(config: RunConfig, index: int) -> float:
    """The base in a stage: the last one that was set, else the model's."""
    set_so_far = [stage.theta for stage in config.stages[: index + 1] if stage.theta is not None]
    return set_so_far[-1] if set_so_far else config.model.theta


def original_length(config: RunConfig, index: int) -> int:
    """The length that a stage's method counts as trained: as written, else the longest trained before."""
    stage = config.stages[index]
    if stage.original_length is not None:
        return stage.original_length
    return max((earlier.length for earlier in config.stages[:index] if earlier.steps), default=stage.length)


def factor_of(config: RunConfig, index: int) -> float:
    """The factor of a stage's method: as written, else the length it reaches in those trained before."""
    stage = config.stages[index]
    if stage.factor is not None:
        return stage.factor
    return max(1.0, (stage.pose_target or stage.length) / original_length(config, index))


def stage_subject(config: RunConfig, index: int = 0) -> Subject:
    """The model as a stage finds it, before the stage's method."""
    model = dataclasses.replace(config.model, theta=theta_of(config, index))
    train = TrainConfig(length=original_length(config, index))
    return fresh_subject(ExperimentConfig(name=config.name, model=model, train=train))


def learned_before(config: RunConfig, index: int) -> bool:
    """Whether a stage builds on frequencies that an earlier one trained: none has set another base since."""
    learned = False
    for stage in config.stages[: index + 1]:
        learned = learned and stage.theta is None
        if stage is not config.stages[index]:
            learned = learned or (stage.learnable and stage.steps > 0)
    return learned


def stage_schedules(
    config: RunConfig,
    index: int,
    *,
    length: int | None = None,
    learned: Mapping[str, jax.Array | np.ndarray] | None = None,
) -> Schedules:
    """Layer group -> schedule of a stage, None for a model that is not rotated.

    Args:
      config: the run.
      index: of the stage.
      length: for methods whose frequencies depend on it; None: that of the stage.
      learned: log inv_freq by layer group as earlier stages left it; the method then edits these frequencies.

    Raises:
      ValueError: a method that is more than frequencies, reaches no layer, or cannot edit what was learned.
    """
    stage, subject = config.stages[index], stage_subject(config, index)
    method = parse_method(stage.transform)
    if not method.frequencies_only:
        raise ValueError(
            f"`stages[{index}].transform` must edit frequencies alone; got {stage.transform!r}. "
            "Score maps and logit scales are swept over with scripts/extrapolate.py."
        )
    original = original_length(config, index)
    if method.text(original_length=original) != "Identity()":
        subject.check_reach(method.layers, f"`stages[{index}].transform`", stage.transform, scales=False)
    transform = method.transform(factor=factor_of(config, index), original_length=original)
    length = stage.length if length is None else length
    if learned is None or subject.rope is None:
        return subject.schedules(transform, length=length, layers=method.layers)
    edited = subject.composed(transform, method.layers)
    assert edited is not None  # there is a rope
    return {
        group: None if spec is None else _on_learned(spec, learned[group], length)
        for group, spec in edited.specs.items()
    }


def _on_learned(spec: RopeSpec, logarithm: jax.Array | np.ndarray, length: int) -> FrequencySchedule:
    """What a group's method makes of learned frequencies."""
    base = FrequencySchedule.of(np.exp(np.asarray(logarithm, np.float64)))
    return chain(spec.transform)(base, length=length)

"""What turns queries and keys in every stage: the base as it stands there, and the stage's method on top."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np

from rope_jax.experiment.methods import Method, parse_method
from rope_jax.experiment.model import Subject
from rope_jax.experiment.training.frequencies import Schedules
from rope_jax.experiment.training.start import Run, rebased
from rope_jax.schedule import FrequencySchedule


def theta_set(run: Run, index: int) -> float | None:
    """The base that stages have set by then; None: that of the model."""
    set_so_far = [stage.theta for stage in run.config.stages[: index + 1] if stage.theta is not None]
    return set_so_far[-1] if set_so_far else None


def thetas_of(run: Run, index: int) -> dict[str, float]:
    """The base of every layer group that turns in a stage."""
    rope = stage_subject(run, index).rope
    return {} if rope is None else {group: spec.theta for group, spec in rope.specs.items() if spec is not None}


def original_length(run: Run, index: int) -> int:
    """The length that a stage's method counts as trained: as written, else the longest trained before."""
    stage = run.config.stages[index]
    if stage.original_length is not None:
        return stage.original_length
    trained = [earlier.length for earlier in run.config.stages[:index] if earlier.steps]
    own = run.subject.own_length
    return max((*trained, *(() if own is None else (own,))), default=stage.length)


def factor_of(run: Run, index: int) -> float:
    """The factor of a stage's method: as written, else the length it reaches in those trained before."""
    stage = run.config.stages[index]
    if stage.factor is not None:
        return stage.factor
    return max(1.0, (stage.pose_target or stage.length) / original_length(run, index))


def stage_subject(run: Run, index: int = 0) -> Subject:
    """The model as a stage finds it, before the stage's method."""
    theta = theta_set(run, index)
    subject = run.subject if theta is None else rebased(run.subject, theta)
    return dataclasses.replace(subject, trained_length=original_length(run, index))


def stage_method(run: Run, index: int) -> tuple[Method, Callable[..., FrequencySchedule]]:
    """The method of a stage as it is written, and the transform that it stands for there.

    Raises:
      ValueError: it is more than frequencies.
    """
    written = run.config.stages[index].transform
    method = parse_method(written)
    if not method.frequencies_only:
        raise ValueError(
            f"`stages[{index}].transform` must edit frequencies alone; got {written!r}. "
            "Score maps and logit scales are swept over with scripts/extrapolate.py."
        )
    original = original_length(run, index)
    return method, method.transform(factor=factor_of(run, index), original_length=original)


def learned_before(run: Run, index: int) -> bool:
    """Whether a stage builds on frequencies that an earlier one trained: none has set another base since."""
    learned, stages = False, run.config.stages
    for stage in stages[: index + 1]:
        learned = learned and stage.theta is None
        if stage is not stages[index]:
            learned = learned or (stage.learnable and stage.steps > 0)
    return learned


def stage_schedules(
    run: Run,
    index: int,
    *,
    length: int | None = None,
    learned: Mapping[str, jax.Array | np.ndarray] | None = None,
) -> Schedules:
    """Layer group -> schedule of a stage, None for a model that is not rotated.

    Args:
      run: the run.
      index: of the stage.
      length: for methods whose frequencies depend on it; None: that of the stage.
      learned: log inv_freq by layer group as earlier stages left it; the method then edits these frequencies.

    Raises:
      ValueError: a method that is more than frequencies, reaches no layer, or cannot edit what was learned.
    """
    stage, subject = run.config.stages[index], stage_subject(run, index)
    method, transform = stage_method(run, index)
    if method.text(original_length=subject.trained_length) != "Identity()":
        subject.check_reach(method.layers, f"`stages[{index}].transform`", stage.transform, scales=False)
    length = stage.length if length is None else length
    if learned is None or subject.rope is None:
        return subject.schedules(transform, length=length, layers=method.layers)
    reached = subject.edited(method.layers)
    return {
        group: None
        if own is None
        else _on_learned(own, learned[group], transform if group in reached else None, length)
        for group, own in subject.rope.schedules(length).items()
    }


def _on_learned(
    own: FrequencySchedule,
    logarithm: jax.Array | np.ndarray,
    transform: Callable[..., FrequencySchedule] | None,
    length: int,
) -> FrequencySchedule:
    """What a stage's method makes of learned frequencies, which the model's own method has edited already."""
    exact = FrequencySchedule.of(np.exp(np.asarray(logarithm, np.float64)))
    base = exact.replace(attention_scale=own.attention_scale)
    return base if transform is None else transform(base, length=length)

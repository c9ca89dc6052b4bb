"""The sweep of a checkpoint that nothing more is said about."""

from dataclasses import dataclass, replace

from rope_jax.experiment.config import (
    DataConfig,
    EvaluateConfig,
    ExperimentConfig,
    ModelConfig,
    SweepConfig,
    TrainConfig,
)
from rope_jax.experiment.methods import parse_method
from rope_jax.experiment.model import Subject
from rope_jax.experiment.published import checkpoint_name, subject_of

# Each with what stands in where the checkpoint's frequencies are not geometric, which the index ramp needs.
METHODS = (("Identity()",), ("PositionInterpolation()",), ("NTKAware()",), ("YaRN()", 'YaRN(ramp="turns")'))
MULTIPLES = (1.0, 2.0, 4.0)
SMALL, MIDDLING = 10_000_000, 50_000_000  # parameters up to which 4 and 2 rows of the longest length go in a call
KEY_DIGITS = 5


@dataclass(frozen=True, eq=False)
class Defaults:
    """Settings for a checkpoint, its model, and a note on each method that is left out or has another form."""

    config: ExperimentConfig
    subject: Subject
    notes: tuple[str, ...]


def checkpoint_config(source: str) -> ExperimentConfig:
    """The settings of `checkpoint_defaults` alone.

    Args:
      source: a folder in Hugging Face form, a .gguf file or a hub id.

    Raises:
      ValueError, TypeError, OSError: no such checkpoint, or one that cannot be read.

    Example:
      checkpoint_config("path/to/model").train.length
    """
    return checkpoint_defaults(source).config


def checkpoint_defaults(source: str) -> Defaults:
    """Settings for a checkpoint as it is: four methods at up to four times its trained length, no training.

    Factors match the length, and stand at 2 as well. The baseline moves by a quarter of the trained length, so the tail
    that is scored sees between three quarters of it and all. A small model has time for more windows.

    Args:
      source: a folder in Hugging Face form, a .gguf file or a hub id.

    Raises:
      ValueError, TypeError, OSError: no such checkpoint, or one that cannot be read.
    """
    config = ExperimentConfig(
        name=checkpoint_name(source),
        data=DataConfig(key_length=KEY_DIGITS),
        model=ModelConfig(checkpoint=source),
        train=TrainConfig(steps=0, batch=4),
        sweep=SweepConfig(factors=("match", 2.0), multiples=MULTIPLES),
    )
    subject = subject_of(config)
    length = subject.own_length or config.train.length
    small = subject.parameters <= SMALL
    rows = 4 if small else 2 if subject.parameters <= MIDDLING else 1
    subject = replace(subject, trained_length=length)
    methods, notes = _methods(subject)
    config = replace(
        config,
        train=replace(config.train, length=length),
        sweep=replace(config.sweep, methods=methods),
        evaluate=EvaluateConfig(
            windows=24 if small else 8,
            batch=rows,
            truncation_stride=max(1, length // 4),
            depths=5,
            trials=4,
            loss_chunk=512,
        ),
    )
    return Defaults(config, subject, notes)


def _methods(subject: Subject) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first form of each method that can be put on top of the checkpoint's own rope, and a note on the others."""
    methods, notes = [], []
    for forms in METHODS:
        refused = {form: reason for form in forms if (reason := _refusal(form, subject))}
        found = [form for form in forms if form not in refused][:1]
        methods += found
        if forms[0] in refused:
            what = f"{found[0]} stands in for it" if found else "it is left out"
            notes.append(f"{forms[0]} cannot be built on the checkpoint's own rope, so {what}: {refused[forms[0]]}")
    return tuple(methods), tuple(notes)


def _refusal(form: str, subject: Subject) -> str:
    """Why a method cannot be put on top of the checkpoint's own rope; empty where it can."""
    length = subject.trained_length
    try:
        subject.schedules(parse_method(form).transform(factor=2.0, original_length=length), length=2 * length)
    except (ValueError, TypeError) as error:
        return " ".join(str(error).split())
    return ""

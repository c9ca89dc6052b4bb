"""What of a run's settings may be others when it goes on: how it computes, and the stages that it has not reached."""

import re
from collections.abc import Mapping
from typing import Any

from rope_jax.experiment.training.config import bearing
from rope_jax.experiment.training.settings import RunConfig

_STAGE = re.compile(r"stages\[(\d+)\]")

Saved = Mapping[str, Any]
"""Settings as `bearing` gives them."""


def check_same(saved: Saved, config: RunConfig, where: str, reached: int) -> None:
    """Refuses to go on from a checkpoint of other settings.

    Stages that the run has not reached may be changed, added and left out, as long as nothing before them would have
    been another: the learning rate decays over all stages of its curve, every evaluation reads the ends of the longest
    windows, and frequencies that are trained are part of the state from the start.

    Args:
      saved: the settings that it was saved with.
      config: those of now.
      where: the checkpoint, in words.
      reached: stages that have ended or are under way there.

    Raises:
      ValueError: some differ; each is named with both values.
    """
    own = bearing(config)
    paths = [path for path in dict.fromkeys((*saved, *own)) if _stage(path) < reached]
    differing = [path for path in paths if saved.get(path) != own.get(path)]
    if differing:
        shown = "; ".join(f"{path} = {saved.get(path)!r} there, {own.get(path)!r} here" for path in differing)
        raise ValueError(
            f"`config` must be the one that {where} was saved with; got {shown}. "
            f"Set these back, or give the run another name.{_longer(differing, reached)}"
        )
    _check_later(saved, own, where, reached)


def _check_later(saved: Saved, own: Saved, where: str, reached: int) -> None:
    """What stages that have not been reached decide of those that have."""
    later = f"stages[{reached}]"
    for what, found in (
        ("steps of the learning rate's curve after the stages that it reached", _curve_after),
        ("tokens of the longest stage, whose windows all evaluations read", _longest),
        ("stages with learnable frequencies, which are part of the state", _learns),
    ):
        there, here = found(saved, reached), found(own, reached)
        if there != here:
            cure = 'Write schedule = "rewarmed" there' if found is _curve_after else "Set it back"
            raise ValueError(
                f"`{later}` must leave what {where} was trained with as it is; got {there} {what} there, {here} here. "
                f"{cure}, or give the run another name."
            )


def _stage(path: str) -> int:
    """The stage that a path belongs to, -1 for none."""
    found = _STAGE.match(path)
    return int(found[1]) if found else -1


def _stages(settings: Saved) -> int:
    return 1 + max(map(_stage, settings))


def _curve_after(settings: Saved, reached: int) -> int:
    """Steps of stages not reached that are on the curve of the last one that is."""
    steps = 0
    for index in range(reached, _stages(settings)):
        trains = settings[f"stages[{index}].steps"]
        if trains and settings[f"stages[{index}].schedule"] == "rewarmed":
            break
        steps += trains
    return steps


def _longest(settings: Saved, _: int) -> int:
    stages = (settings[f"stages[{index}].length"] for index in range(_stages(settings)))
    evaluated = (length for path, length in settings.items() if path.startswith("evaluate.lengths["))
    return max((*stages, *evaluated))


def _learns(settings: Saved, _: int) -> str:
    learns = any(settings[f"stages[{index}].learnable"] for index in range(_stages(settings)))
    return "some" if learns else "no"


def _longer(differing: list[str], reached: int) -> str:
    """What to do for more steps."""
    if not any(path == f"stages[{index}].steps" for path in differing for index in range(reached)):
        return ""
    return ' To train longer, add a stage with schedule = "rewarmed" behind those that are there.'

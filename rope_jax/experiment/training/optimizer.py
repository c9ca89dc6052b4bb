"""The optimizer and the learning rate of a run, whose stages may share one curve or start their own."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jaxtyping import PyTree

from rope_jax.experiment.training.settings import OptimizerConfig, RunConfig

_SPARED = ("scale", "bias", "sinks", "frequencies")


def adamw(rate: Callable[[Any], Any], settings: OptimizerConfig) -> optax.GradientTransformation:
    """AdamW (arXiv 1711.05101) behind a clip of the global norm.

    Weight decay pulls on matrices; norm scales, biases, attention sinks and frequencies are spared.

    Args:
      rate: steps taken -> learning rate.
      settings: the rest.
    """
    moments = optax.adamw(
        rate,
        b1=settings.b1,
        b2=settings.b2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        mask=_decays,
    )
    return optax.chain(optax.clip_by_global_norm(settings.clip), moments)


def _decays(params: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(f"'{name}'" in jax.tree_util.keystr(path) for name in _SPARED), params
    )


def stage_starts(config: RunConfig) -> tuple[int, ...]:
    """The step before which every stage begins, and that of the end."""
    starts = [0]
    for stage in config.stages:
        starts.append(starts[-1] + stage.steps)
    return tuple(starts)


def learning_rate(config: RunConfig) -> Callable[[Any], Any]:
    """Step of the run -> learning rate, over all stages.

    A curve is a linear warmup, then a cosine down to `final_fraction` of the peak. It spans the stage that starts it
    and those after it with schedule = "continued".
    """
    starts, settings = stage_starts(config), config.optimizer
    trained = [(start, stage) for start, stage in zip(starts, config.stages, strict=False) if stage.steps]
    firsts = [i for i, (_, stage) in enumerate(trained) if i == 0 or stage.schedule == "rewarmed"]
    if not trained:
        return optax.constant_schedule(0.0)
    curves = []
    for first, end in zip(firsts, [*firsts[1:], len(trained)], strict=True):
        stage = trained[first][1]
        peak = settings.learning_rate if stage.learning_rate is None else stage.learning_rate
        curves.append(
            optax.warmup_cosine_decay_schedule(
                init_value=0.0,
                peak_value=peak,
                warmup_steps=settings.warmup if stage.warmup is None else stage.warmup,
                decay_steps=sum(stage.steps for _, stage in trained[first:end]),
                end_value=peak * settings.final_fraction,
            )
        )
    return optax.join_schedules(curves, [trained[first][0] for first in firsts[1:]])


def stage_optimizer(config: RunConfig, index: int) -> optax.GradientTransformation:
    """The optimizer of a stage; a state that was reset counts its steps from there."""
    starts = stage_starts(config)
    resets = [i for i, stage in enumerate(config.stages[: index + 1]) if stage.optimizer == "reset"]
    offset = starts[resets[-1]] if resets else 0
    rate = learning_rate(config)
    return adamw(lambda count: rate(count + offset), config.optimizer)

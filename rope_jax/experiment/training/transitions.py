"""From one stage to the next: what becomes of the optimizer's moments and of frequencies that are trained."""

from typing import Any

import jax
from jaxtyping import PyTree

from rope_jax.experiment.training.frequencies import logarithms, turned_by
from rope_jax.experiment.training.optimizer import stage_optimizer
from rope_jax.experiment.training.stages import learned_before, stage_schedules
from rope_jax.experiment.training.start import Run
from rope_jax.experiment.training.step import State


def entered(run: Run, index: int, state: State) -> State:
    """The state at the start of a stage, from that at the end of the one before.

    Args:
      run: the run.
      index: of the stage that begins.
      state: kept intact where nothing changes.
    """
    stage = run.config.stages[index]
    if stage.learnable and "frequencies" in state:
        begun = logarithms(_schedules(run, index, state, None))
        places = jax.tree.map(lambda leaf: leaf.sharding, state["frequencies"])
        state = {**state, "frequencies": jax.device_put(begun, places)}
    if stage.optimizer == "reset" and index:
        optimized: PyTree = {name: part for name, part in state.items() if name != "opt"}
        optimized = optimized if "frequencies" in state else state["params"]
        places = jax.tree.map(lambda leaf: leaf.sharding, state["opt"])
        state = {**state, "opt": jax.jit(stage_optimizer(run.config, index).init, out_shardings=places)(optimized)}
    return state


def trained_schedules(run: Run, index: int, state: State) -> Any:
    """What a stage's step is called with; where frequencies are trained, only the attention scales of it count."""
    stage = run.config.stages[index]
    return stage_schedules(run, index) if stage.learnable else _schedules(run, index, state, None)


def evaluated_schedules(run: Run, index: int, state: State, length: int) -> Any:
    """What a stage is evaluated with at a length: its schedules, with what is learned so far."""
    if run.config.stages[index].learnable and "frequencies" in state:
        return turned_by(stage_schedules(run, index, length=length), state["frequencies"])
    return _schedules(run, index, state, length)


def _schedules(run: Run, index: int, state: State, length: int | None) -> Any:
    """The schedules of a stage on top of what earlier ones have learned."""
    learned = jax.device_get(state["frequencies"]) if learned_before(run, index) else None
    return stage_schedules(run, index, length=length, learned=learned)

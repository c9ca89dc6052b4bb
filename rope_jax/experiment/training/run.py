"""A run from its start, or from where it was left, to its end or to a signal."""

from dataclasses import dataclass

import jax

from rope_jax.experiment.training.loop import StageLoop, Stopped
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.signals import noted
from rope_jax.experiment.training.step import State
from rope_jax.experiment.training.transitions import entered


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its last step, the signal that stopped it (None: it is finished), its state."""

    step: int
    stopped: int | None
    state: State


def train(session: Session) -> Outcome:
    """Train what is left of all stages of a run.

    Raises:
      FloatingPointError: a loss or the weights are not finite; the last good checkpoint is named.
    """
    config = session.config
    with jax.set_mesh(session.mesh), noted(session):
        state, point = session.begin()
        step = point.step
        for index in range(point.stage, len(config.stages)):
            resumed = point.feed if index == point.stage else None
            if resumed is None:
                state = entered(session.run, index, state)
            try:
                state, step = StageLoop(session, index).run(state, step, resumed)
            except Stopped as stopped:
                session.checkpoints.wait()
                return Outcome(stopped.step, session.signal, stopped.state)
        session.checkpoints.wait()
        session.stepping = False
        return Outcome(step, None, state)

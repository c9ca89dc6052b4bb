"""The steps of one stage: batches in, metrics out, checkpoints on the way, a clean stop at any step."""

import signal
import time
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from rope_jax.experiment.training.attention_statistics import attention_statistics
from rope_jax.experiment.training.feed import Feed
from rope_jax.experiment.training.guard import check_losses, check_numbers, check_state
from rope_jax.experiment.training.optimizer import learning_rate, stage_starts
from rope_jax.experiment.training.session import Point, Session
from rope_jax.experiment.training.stage_step import stage_step
from rope_jax.experiment.training.step import State
from rope_jax.experiment.training.throughput import model_flops, utilisation
from rope_jax.experiment.training.transitions import evaluated_schedules, trained_schedules

AHEAD = 2
"""Steps that are handed to the devices before the one that they work on has ended."""


class Stopped(Exception):
    """A signal has ended the run between two steps, after a checkpoint."""

    def __init__(self, step: int, state: State) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.state = step, state


class StageLoop:
    """Runs one stage of a run, from its start or from where its feed was left.

    Args:
      session: the run.
      index: of the stage.
    """

    def __init__(self, session: Session, index: int) -> None:
        config = session.config
        self.session, self.config, self.index = session, config, index
        self.stage = config.stages[index]
        self.start, self.end = stage_starts(config)[index : index + 2]
        self.rate = learning_rate(config)
        self.step = stage_step(config, index, session.graphdef, session.abstract)
        flops = model_flops(session.shape, session.parameters, self.stage.length)
        self._flops = flops * config.tokens_per_batch
        self._statistics = jax.jit(attention_statistics, static_argnums=0)
        self._pending: list[dict[str, jax.Array]] = []

    def run(self, state: State, step: int, resumed: dict[str, Any] | None) -> tuple[State, int]:
        """The state and the step at the end of the stage.

        Args:
          state: donated.
          step: steps of the run so far.
          resumed: where the feed was left; None: at the start.

        Raises:
          Stopped: by a signal; a checkpoint of that step is complete.
          FloatingPointError: it diverged.
        """
        if not self.stage.steps:
            self.session.finish_stage(self.index, state, step, None)
            if self.index + 1 < len(self.config.stages) and self._stops(step):
                raise Stopped(step, state)
            return state, step
        with Feed(self.config, self.index, self.session.mesh, self.session.text.corpora[self.index], resumed) as feed:
            schedules = trained_schedules(self.session.run, self.index, state)
            first = step + 1
            self.session.metrics.say(f"{self.stage.name}: compiling for rows of {self.stage.length} tokens")
            while step < self.end:
                batch = next(feed)
                state, metrics = self.step(state, schedules, batch)
                self.session.stepping = True
                step += 1
                self._pending.append(metrics)
                if step == first:
                    # Which compiles: speed is that of the steps after it.
                    metrics["loss"].block_until_ready()
                    self._clock(feed, step)
                if len(self._pending) > AHEAD:
                    self._pending[-AHEAD - 1]["loss"].block_until_ready()
                self._after(state, step, batch, feed)
            return state, step

    def _after(self, state: State, step: int, batch: dict[str, jax.Array], feed: Feed) -> None:
        """What is due after a step: a line, an evaluation, a checkpoint, a stop."""
        config, last = self.config, step == self.end
        logs, saves = (last or step % every == 0 for every in (config.log.every, config.checkpoint.every))
        judges = last or (config.evaluate.every > 0 and step % config.evaluate.every == 0)
        if logs:
            self._log(step, feed)
        if config.log.statistics_every and step % config.log.statistics_every == 0:
            self._log_statistics(state, step, batch)
        if last:
            self.session.finish_stage(self.index, state, step, feed.state()["record"])
        elif judges:
            self.session.evaluate(self.index, state, step)
        stops = self._stops(step)
        if saves or stops:
            self._save(state, step, feed, wait=stops)
        if stops:
            raise Stopped(step, state)
        if logs or saves or judges:
            self._clock(feed, step)

    def _save(self, state: State, step: int, feed: Feed, *, wait: bool) -> None:
        self._checked(step)
        check_state(state, step, self._cure())
        ended = step == self.end
        point = Point(step, self.index + 1, None) if ended else Point(step, self.index, feed.state())
        self.session.save(state, point, wait=wait)

    def _checked(self, step: int) -> float | None:
        """The last loss so far, all of them being finite."""
        if not self._pending:
            return None
        losses = [metrics["loss"] for metrics in self._pending]
        self._pending = []
        return check_losses(losses, step, self._cure())

    def _cure(self) -> str:
        return self.session.cure()

    def _clock(self, feed: Feed, step: int) -> None:
        """Times count from here."""
        self._since, self._from, self._data = time.perf_counter(), step, feed.seconds

    def _log(self, step: int, feed: Feed) -> None:
        last = self._pending[-1]
        loss = self._checked(step)
        norm = float(last["grad_norm"])
        check_numbers(norm, "grad_norm", step, self._cure())
        done, seconds = step - self._from, time.perf_counter() - self._since
        tokens, devices = self.config.tokens_per_batch, list(self.session.mesh.devices.flat)
        speed = tokens * done / seconds if done else None
        self.session.metrics.write(
            "train",
            step,
            self.stage.name,
            loss=loss,
            grad_norm=norm,
            learning_rate=float(self.rate(step - 1)),
            tokens=step * tokens,
            tokens_per_second=speed,
            mfu=utilisation(self._flops * done, seconds, devices[0].device_kind, len(devices)) if done else None,
            data_seconds=feed.seconds - self._data,
            seconds=seconds,
        )
        told = f"{self.stage.name}: step {step}/{self.config.steps}, loss {loss:.4f}"
        self.session.metrics.say(told + _pace(speed, (self.config.steps - step) * tokens))

    def _log_statistics(self, state: State, step: int, batch: dict[str, jax.Array]) -> None:
        schedules = evaluated_schedules(self.session.run, self.index, state, self.stage.length)
        read = {name: batch[name] for name in ("inputs", "positions", "segments")}
        found = self._statistics(self.session.undivided, state["params"], schedules, read)
        values = {name: np.asarray(value).tolist() for name, value in jax.device_get(found).items()}
        check_numbers(values, "attention", step, self._cure())
        self.session.metrics.write("attention", step, self.stage.name, **values)

    def _stops(self, step: int) -> bool:
        """Whether a signal has come; processes agree on the step, and so ask each other only now and then."""
        if jax.process_count() == 1:
            return self.session.signal is not None
        if step % self.config.log.every and step != self.end:
            return False
        # Of NumPy: a jax array would be one of the whole mesh here, not this process's own.
        flags = multihost_utils.process_allgather(np.asarray(self.session.signal or 0, np.int32))
        received = int(np.max(flags))
        self.session.signal = received or None
        return received in (signal.SIGTERM, signal.SIGINT)


def _pace(speed: float | None, tokens: int) -> str:
    """How fast, and how long the tokens that are left will take; nothing where the speed is not known yet."""
    if speed is None:
        return ""
    seconds = tokens / speed
    left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f", {speed:,.0f} tokens/s" + (f"; about {left} left" if tokens else "")

"""The worker processes of a sweep on a Ray cluster: started, given cells, waited for, replaced, dismissed."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rope_jax.experiment.executors.agenda import describe
from rope_jax.experiment.executors.connection import capacity, refuse_small, worker_environment
from rope_jax.experiment.executors.job import ExecutorError, Job, Measured
from rope_jax.experiment.executors.local import one_line
from rope_jax.experiment.executors.ray_options import RayOptions
from rope_jax.experiment.executors.worker import Errand, Worker

TICK = 1.0
"""Seconds after which the cluster is looked at anew."""


class Ended(NamedTuple):
    """How one try of a cell ended: with what was measured, or with why its worker was given up."""

    key: str
    measured: Measured | None
    lost: str | None = None


@dataclass(eq=False)
class Hand:
    """One worker: its Ray actor, what it is at, and where it is (unknown until it has prepared)."""

    actor: Any
    reference: Any
    place: str | None = None
    key: str | None = None
    last: str | None = None


@dataclass(eq=False)
class Crew:
    """The workers of one sweep.

    Args:
      ray: the package, connected.
      options: how the cluster is used.
      gpus: that a worker takes up.
      errand: what every worker is told.
      job: the sweep.
    """

    ray: Any
    options: RayOptions
    gpus: float
    errand: Errand
    job: Job
    hands: list[Hand] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    """Why workers were lost before they were ready."""
    seen: float = field(default_factory=time.monotonic)
    """When a node that holds a worker, or a worker that is ready, was last there."""
    queued: float | None = None
    """Since when all workers wait to be started; infinite once that is said."""

    def busy(self) -> set[str]:
        """Keys of the cells that are being measured."""
        return {hand.key for hand in self.hands if hand.key is not None}

    def hire(self, ready: int) -> None:
        """Start workers for `ready` more cells, as far as the nodes hold them.

        Raises:
          ExecutorError: no node holds a worker for longer than `options.wait`, or none can do the work.
        """
        room = capacity(self.ray.nodes(), self.options.cpus, self.gpus)
        if room or any(hand.place for hand in self.hands):
            self.seen = time.monotonic()
        elif time.monotonic() - self.seen > self.options.wait:
            raise refuse_small(self.ray, self.options, self.gpus)
        self._say_queued()
        # A place where workers cannot start would otherwise be tried for ever.
        limit = (room if self.options.workers is None else self.options.workers) - self._barred()
        if room and limit <= 0 and not self.hands:
            raise ExecutorError(f"no worker of the cluster can start: {self.unfit[-1]}")
        while room and len(self.hands) < min(len(self.busy()) + ready, limit):
            self.hands.append(self._started())

    def assign(self, ready: Sequence[str]) -> None:
        """Give every idle worker a cell, as far as there are any."""
        left = list(ready)
        for hand in self.hands:
            if not left or hand.place is None or hand.key is not None:
                continue
            key = self.job.agenda.choice(left, hand.last)
            left.remove(key)
            cell = self.job.agenda.cells[key]
            rows = [row for row in self.job.rows() if row["metric"] == "truncated_loss" and row["seed"] == cell.seed]
            hand.key, hand.reference = key, hand.actor.measure.remote(key, rows)
            self.job.reporter.advance(0.0, f"{describe(cell)}: begun on {hand.place}")

    def ended(self) -> list[Ended]:
        """Wait a moment for workers, and see which tries of cells have ended."""
        waited = {hand.reference: hand for hand in self.hands if hand.reference is not None}
        if not waited:
            time.sleep(TICK)
            return []
        self.ray.wait(list(waited), num_returns=1, timeout=TICK)
        # All that have ended: of cells that take a moment, the first worker's would otherwise always come first.
        done, _ = self.ray.wait(list(waited), num_returns=len(waited), timeout=0)
        results = [self._result(waited[reference]) for reference in done]
        return [result for result in results if result is not None]

    def dismiss(self) -> None:
        """End all workers."""
        for hand in self.hands:
            self.ray.kill(hand.actor)
        self.hands.clear()

    def _started(self) -> Hand:
        environment = {"env_vars": worker_environment(self.options.cpus, self.gpus, os.environ)}
        resources = {"num_cpus": self.options.cpus, "num_gpus": self.gpus}
        actor = self.ray.remote(**resources, max_restarts=0, runtime_env=environment)(Worker).remote(self.errand)
        return Hand(actor, actor.prepare.remote())

    def _say_queued(self) -> None:
        """Say once that no worker has started: the cluster may be taken up by others, for which the sweep waits."""
        if not self.hands or any(hand.place for hand in self.hands):
            self.queued = None
            return
        now = time.monotonic()
        self.queued = self.queued or now
        if now - self.queued > self.options.wait:
            self.queued = math.inf
            self.job.reporter.note(
                f"no worker has started within {self.options.wait:g} s: others take up the cluster (ray status), or "
                "its machines are slow; waiting on"
            )

    def _barred(self) -> int:
        return max(0, len(self.unfit) - self.options.retries)

    def _result(self, hand: Hand) -> Ended | None:
        """What a worker's call gave; one that raised is given up, since its process may be broken."""
        key = hand.key
        try:
            value = self.ray.get(hand.reference)
        except self.ray.exceptions.RayError as error:
            self.hands.remove(hand)
            self.ray.kill(hand.actor)
            reason = _reason(error)
            if key is not None:
                return Ended(key, None, reason)
            self.unfit.append(reason)
            self.job.reporter.note(f"a worker could not start: {reason}")
            return None
        hand.reference = hand.key = None
        if key is None:
            hand.place = str(value)
            return None
        hand.last = key
        return Ended(key, value)


def _reason(error: BaseException) -> str:
    """Why a worker was lost, on one line: the error raised in it, or what Ray knows of its end."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return one_line(f"{type(cause).__name__}: {cause}")
    # The lines that name the actor by its numbers say nothing.
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
    return one_line(f"worker lost: {' '.join(lines)}")

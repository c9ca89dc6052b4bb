"""What a sweep hands to an executor, and what comes back."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rope_jax.experiment.executors.agenda import Agenda
from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.plan import Cell
from rope_jax.experiment.progress import Reporter

Measured = dict[str, Any]
Outcomes = Generator[tuple[Cell, Measured | None], None, None]
"""Cells as they end, each with what its row is to hold ("error" in place of "value" for one that failed), or with None
for one that waits for a failed cell."""


class ExecutorError(RuntimeError):
    """No cell can be measured any more, through no fault of the program; its text is for the user."""


@dataclass(frozen=True, eq=False)
class Job:
    """The unfinished part of a sweep.

    Args:
      laboratory: of this process; it has read the text.
      agenda: all cells.
      finished: keys of those that earlier runs finished.
      rows: the finished rows so far; a cell that was handed back is among them when the next one is asked for.
      reporter: told of the work done.
    """

    laboratory: Laboratory
    agenda: Agenda
    finished: frozenset[str]
    rows: Callable[[], list[dict[str, Any]]]
    reporter: Reporter


@runtime_checkable
class Executor(Protocol):
    """Measures the cells of a sweep. Opened before anything is written, closed when the sweep is."""

    def open(self) -> None:
        """Make ready, or raise what keeps it from that."""

    def outcomes(self, job: Job) -> Outcomes:
        """Measure what is not finished; cells come back in the order in which they end."""

    def close(self) -> None:
        """Give up what `open` took."""

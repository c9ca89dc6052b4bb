"""Cells one after the other, in this process; and how a cell ends, wherever it is measured."""

import math
import time
from collections.abc import Sequence

import jax

from rope_jax.experiment.executors.job import Job, Measured, Outcomes
from rope_jax.experiment.measure import Laboratory, Row
from rope_jax.experiment.plan import Cell, work
from rope_jax.experiment.weights import MissingResult


class LocalExecutor:
    """The cells in the order of the plan, in this process."""

    def open(self) -> None:
        """Nothing to make ready."""

    def outcomes(self, job: Job) -> Outcomes:
        """Measure what is not finished."""
        given_up: set[str] = set()
        for key, cell in job.agenda.cells.items():
            if key in job.finished:
                continue
            measured = None if job.agenda.needs[key] & given_up else measure(job.laboratory, cell, job.rows())
            if measured is None or "error" in measured:
                given_up.add(key)
            # Steps of training are counted as they are done.
            if measured is not None and cell.metric != "training":
                job.reporter.advance(work(job.laboratory.config, cell))
            yield cell, measured

    def close(self) -> None:
        """Nothing to give up."""


def measure(laboratory: Laboratory, cell: Cell, rows: Sequence[Row]) -> Measured | None:
    """What the row of a cell is to hold, with its seconds.

    A cell that does not fit in memory, diverges, or is not finite has "error" in place of "value".

    Args:
      laboratory: measures it.
      cell: from the plan.
      rows: finished rows; a loss is paired with its truncation baseline there.

    Returns:
      The fields, or None where the cell needs what a failed one was to give.
    """
    start = time.perf_counter()
    try:
        measured = laboratory.measure(cell, rows)
    except MissingResult:
        return None
    except FloatingPointError as error:
        measured = {"error": one_line(error)}
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not _out_of_memory(error):
            raise
        measured = {"error": f"out of memory: {one_line(error)}"}
    broken = [name for name in ("value", "mean") if not math.isfinite(measured.get(name, 0.0))]
    if broken:
        measured = {"error": f"the {broken[0]} must be finite; got {measured[broken[0]]}"}
    return measured | {"seconds": time.perf_counter() - start}


def one_line(error: BaseException | str) -> str:
    """The text of an error on one line, cut where it is very long."""
    return " ".join(str(error).split())[:300]


def _out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or "resource_exhausted" in text or "out of memory" in text

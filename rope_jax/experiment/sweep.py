"""The sweep: runs the cells of the plan that are not finished yet and appends a row for each."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.model import Subject
from rope_jax.experiment.plan import Cell, plan, work
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.published import subject_of
from rope_jax.experiment.results import Results, cell_key
from rope_jax.experiment.weights import MissingResult


@dataclass(frozen=True)
class Outcome:
    """What a run of a sweep did: cells finished now, failed (with their reasons), left waiting for those; exports."""

    finished: int
    failed: tuple[str, ...]
    waiting: int
    exported: tuple[Path, ...] = ()


class Sweep:
    """One experiment in one folder. Building it checks everything; only `run` computes and adds rows.

    Killed at any moment and started again, it goes on with the first unfinished cell and ends with the same table.

    Example:
      with Sweep(load_config("configs/quickstart.toml")) as sweep:
          sweep.run()

    Args:
      config: the experiment; its folder is `output/name`.
      subject: its model; made of the config when left out.
      metrics: run the cells of these metrics only; all when empty.
      reporter: told how far the run is.

    Raises:
      ValueError, TypeError, OSError: something in the config cannot be done, or the folder holds rows of another one.
      RuntimeError: another run has the folder open.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        subject: Subject | None = None,
        *,
        metrics: tuple[str, ...] = (),
        reporter: Reporter | None = None,
    ) -> None:
        self.config = config
        self.folder = Path(config.output) / config.name
        self.subject = subject or subject_of(config)
        self.cells = [cell for cell in plan(config, self.subject) if not metrics or cell.metric in metrics]
        self._reporter = reporter or Reporter()
        self._laboratory = Laboratory(config, self.folder, self._reporter, self.subject)
        # Last, since it makes the folder.
        self._results = Results(self.folder, config, self._laboratory.corpus, self._laboratory.origin)

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *exception: object) -> None:
        self._results.close()

    def rows(self) -> list[dict[str, Any]]:
        """The finished rows so far."""
        return self._results.rows()

    def run(self) -> Outcome:
        """Run what is not finished, in the order of the plan.

        Raises:
          FloatingPointError: a training loss is not finite.
        """
        pending = [cell for cell in self.cells if not self._results.done(cell_key(self.config, cell.row()))]
        failed: list[str] = []
        waiting = 0
        with self._reporter as reporter:
            total = sum(work(self.config, cell) for cell in pending)
            reporter.begin(cells=len(self.cells), finished=len(self.cells) - len(pending), work=total)
            for line in (*self.subject.notes, *self._laboratory.notes):
                reporter.note(line)
            for cell in pending:
                try:
                    row = self._finish(cell)
                except MissingResult:
                    waiting += 1
                    reporter.cell_ended(f"{describe(cell)}: waits for a failed cell")
                    continue
                if "error" in row:
                    failed.append(f"{describe(cell)}: {row['error']}")
                    reporter.cell_ended(failed[-1])
                else:
                    reporter.cell_ended(f"{describe(cell)}: {row['value']:.4g} ({row['seconds']:.1f} s)")
        return Outcome(len(pending) - len(failed) - waiting, tuple(failed), waiting, self._exported())

    def _exported(self) -> tuple[Path, ...]:
        """The folders of all tuned checkpoints, where the settings ask for them; what is not there yet is written."""
        if not self.config.finetune.export:
            return ()
        tuned = [cell for cell in self.cells if cell.metric == "training" and cell.phase == "tuned"]
        done = [cell for cell in tuned if self._results.done(cell_key(self.config, cell.row()))]
        return tuple(self._laboratory.export(cell) for cell in done)

    def _finish(self, cell: Cell) -> dict[str, Any]:
        """Measure a cell and append its row; one that does not fit in memory is recorded as failed."""
        start = time.perf_counter()
        try:
            measured = self._laboratory.measure(cell, self._results.rows())
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not _out_of_memory(error):
                raise
            measured = {"error": f"out of memory: {' '.join(str(error).split())[:300]}"}
        broken = [name for name in ("value", "mean") if not math.isfinite(measured.get(name, 0.0))]
        if broken:
            measured = {"error": f"the {broken[0]} must be finite; got {measured[broken[0]]}"}
        if cell.metric != "training":
            self._reporter.advance(work(self.config, cell))
        return self._results.append(cell.row() | measured | {"seconds": time.perf_counter() - start})


def describe(cell: Cell) -> str:
    """A cell in words."""
    factor = f" x{cell.factor:g}" if cell.calls.takes_factor else ""
    tuned = ""
    if cell.tuned_method and cell.metric != "training":
        tuned = f" on weights tuned with {cell.calls.label}"
    what = f"{cell.metric} {cell.label}{factor} at {cell.length}"
    if cell.metric == "truncated_loss":
        what = f"{cell.metric}, the baseline ({cell.label}) within {cell.length}"
    return f"{what}{tuned}, seed {cell.seed}"


def _out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or "resource_exhausted" in text or "out of memory" in text

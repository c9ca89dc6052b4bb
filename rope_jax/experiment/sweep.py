"""The sweep: runs the cells of the plan that are not finished yet and appends a row for each."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.executors.agenda import agenda_of, describe
from rope_jax.experiment.executors.job import Executor, Job
from rope_jax.experiment.executors.local import LocalExecutor
from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.model import Subject
from rope_jax.experiment.plan import plan, work
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.published import subject_of
from rope_jax.experiment.results import Results, cell_key


@dataclass(frozen=True)
class Outcome:
    """What a run of a sweep did: cells finished now, failed (with their reasons), left waiting for those; exports."""

    finished: int
    failed: tuple[str, ...]
    waiting: int
    exported: tuple[Path, ...] = ()

    @property
    def unfinished(self) -> str | None:
        """What is to be said of cells without a number, None where there are none."""
        if not self.failed:
            return None
        waits = f", {self.waiting} more waited for such a cell" if self.waiting else ""
        return f"{len(self.failed)} of the cells failed{waits}; the same command tries them again"


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
      executor: where cells are measured; one after the other in this process when left out.

    Raises:
      ValueError, TypeError, OSError: something in the config cannot be done, the folder holds rows of another one, or
        the executor's cluster does not answer.
      RuntimeError: another run has the folder open.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        subject: Subject | None = None,
        *,
        metrics: tuple[str, ...] = (),
        reporter: Reporter | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.config = config
        self.folder = Path(config.output) / config.name
        self.subject = subject or subject_of(config)
        self.cells = [cell for cell in plan(config, self.subject) if not metrics or cell.metric in metrics]
        self._reporter = reporter or Reporter()
        self._executor = executor or LocalExecutor()
        self._executor.open()
        try:
            self._laboratory = Laboratory(config, self.folder, self._reporter, self.subject)
            # Last, since it makes the folder.
            self._results = Results(self.folder, config, self._laboratory.corpus, self._laboratory.origin)
        except BaseException:
            self._executor.close()
            raise

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *exception: object) -> None:
        self._results.close()
        self._executor.close()

    def rows(self) -> list[dict[str, Any]]:
        """The finished rows so far."""
        return self._results.rows()

    def run(self) -> Outcome:
        """Measure what is not finished and append a row for each cell, as it ends; failed ones are recorded as such.

        Raises:
          ExecutorError: the executor cannot measure any cell any more; what ended before is recorded.
        """
        agenda = agenda_of(self.config, self.cells)
        finished = frozenset(key for key in agenda.cells if self._results.done(key))
        failed: list[str] = []
        waiting = 0
        with self._reporter as reporter:
            total = sum(work(self.config, cell) for key, cell in agenda.cells.items() if key not in finished)
            reporter.begin(cells=len(self.cells), finished=len(finished), work=total)
            for line in (*self.subject.notes, *self._laboratory.notes):
                reporter.note(line)
            job = Job(self._laboratory, agenda, finished, self._results.rows, reporter)
            with closing(self._executor.outcomes(job)) as outcomes:
                for cell, measured in outcomes:
                    if measured is None:
                        waiting += 1
                        reporter.cell_ended(f"{describe(cell)}: waits for a failed cell")
                    elif "error" in self._results.append(cell.row() | measured):
                        failed.append(f"{describe(cell)}: {measured['error']}")
                        reporter.cell_ended(failed[-1])
                    else:
                        reporter.cell_ended(f"{describe(cell)}: {measured['value']:.4g} ({measured['seconds']:.1f} s)")
        done = len(self.cells) - len(finished) - len(failed) - waiting
        return Outcome(done, tuple(failed), waiting, self._exported())

    def _exported(self) -> tuple[Path, ...]:
        """The folders of all tuned checkpoints, where the settings ask for them; what is not there yet is written."""
        if not self.config.finetune.export:
            return ()
        tuned = [cell for cell in self.cells if cell.metric == "training" and cell.phase == "tuned"]
        done = [cell for cell in tuned if self._results.done(cell_key(self.config, cell.row()))]
        return tuple(self._laboratory.export(cell) for cell in done)

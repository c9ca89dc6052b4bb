"""Cells side by side, on the machines of a Ray cluster; this process leads and alone writes the results."""

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from rope_jax.experiment.config import config_hash
from rope_jax.experiment.executors.agenda import describe
from rope_jax.experiment.executors.connection import connect, gpus_of, imported_ray
from rope_jax.experiment.executors.crew import Crew, Ended
from rope_jax.experiment.executors.job import Job, Measured, Outcomes
from rope_jax.experiment.executors.ray_options import RayOptions
from rope_jax.experiment.executors.worker import TOKEN, Errand
from rope_jax.experiment.plan import work


class RayExecutor:
    """Workers are Ray actors with declared CPUs and GPUs; each measures one cell after the other.

    A cell begins when its weights are trained and its truncation baseline is measured. Weights reach the workers as the
    checkpoints in the run's folder, which all machines must see. A worker that is lost, or raises an error, costs a
    try of its cell alone: it is tried again by another worker, and recorded as failed after `options.retries` of that.

    Args:
      options: how the cluster is used.

    Raises:
      ImportError: Ray is not installed.
    """

    def __init__(self, options: RayOptions | None = None) -> None:
        self.options = options or RayOptions()
        self._ray: Any = None
        self._joined = False
        imported_ray()
        # This process measures nothing, and must not take up an accelerator that a worker is to have.
        jax.config.update("jax_platforms", "cpu")

    def open(self) -> None:
        """Join the cluster.

        Raises:
          ConnectionError: it does not answer in time.
        """
        already = imported_ray().is_initialized()
        self._ray = connect(self.options)
        self._joined = not already

    def close(self) -> None:
        """Leave the cluster; one that was started for the sweep ends."""
        if self._joined:
            self._ray.shutdown()
        self._joined = False

    def outcomes(self, job: Job) -> Outcomes:
        """Measure what is not finished; ends its workers however it is left.

        Raises:
          ExecutorError: no machine can take a worker.
        """
        agenda = job.agenda
        finished, given_up, tries = set(job.finished), set[str](), Counter[str]()
        with _errand(job) as errand, _crew(self._ray, self.options, errand, job) as crew:
            while len(finished) + len(given_up) < len(agenda.cells):
                ready = agenda.ready(finished, given_up | crew.busy())
                crew.hire(len(ready))
                crew.assign(ready)
                for ended in crew.ended():
                    measured = ended.measured
                    if ended.lost is not None:
                        tries[ended.key] += 1
                        measured = self._spent(job, ended, tries[ended.key])
                        if measured is None:
                            continue
                    failed = measured is None or "error" in measured
                    (given_up if failed else finished).add(ended.key)
                    cell = agenda.cells[ended.key]
                    job.reporter.advance(work(job.laboratory.config, cell))
                    yield cell, measured
                    for key in agenda.stuck(given_up):
                        given_up.add(key)
                        yield agenda.cells[key], None

    def _spent(self, job: Job, ended: Ended, tries: int) -> Measured | None:
        """What is recorded of a cell whose last try failed; None while there are more."""
        allowed = 1 + self.options.retries
        if tries >= allowed:
            return {"error": f"given up after {tries} tries; {ended.lost}"}
        job.reporter.note(f"{describe(job.agenda.cells[ended.key])}: try {tries} of {allowed} failed; {ended.lost}")
        return None


@contextmanager
def _crew(ray: Any, options: RayOptions, errand: Errand, job: Job) -> Iterator[Crew]:
    crew = Crew(ray, options, gpus_of(ray, options), errand, job)
    try:
        yield crew
    finally:
        crew.dismiss()


@contextmanager
def _errand(job: Job) -> Iterator[Errand]:
    """What workers are told; the file that they know the folder by is there as long."""
    laboratory = job.laboratory
    folder = Path(laboratory.folder).absolute()
    token = secrets.token_hex(8)
    mark = folder / TOKEN
    mark.write_text(token, encoding="utf-8")
    origin = laboratory.origin
    try:
        yield Errand(
            config=laboratory.config,
            digest=config_hash(laboratory.config),
            folder=folder,
            home=Path(os.getcwd()),
            token=token,
            corpus=laboratory.corpus,
            checkpoint=None if origin is None else origin["digest"],
        )
    finally:
        mark.unlink(missing_ok=True)

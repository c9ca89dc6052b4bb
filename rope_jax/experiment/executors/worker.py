"""One worker of a sweep: a process on some machine that measures one cell after the other."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rope_jax.experiment.config import ExperimentConfig, config_hash
from rope_jax.experiment.executors.agenda import describe
from rope_jax.experiment.executors.job import Measured
from rope_jax.experiment.executors.local import measure
from rope_jax.experiment.measure import Laboratory, Row
from rope_jax.experiment.plan import Cell, plan
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.provenance import commit, device_name, versions
from rope_jax.experiment.results import cell_key
from rope_jax.experiment.weights import checkpoint_folder

TOKEN = ".sweep"
"""The file in the folder of a run that shows its workers that they see the folder of the process that leads it."""
PATIENCE = 10.0


@dataclass(frozen=True)
class Errand:
    """What a worker is told at its start.

    Args:
      config: the experiment.
      digest: its `config_hash` as the leading process has it.
      folder: of the run, an absolute path.
      home: the folder that relative paths of the config are meant from.
      token: what the file `TOKEN` in the run's folder holds.
      corpus: digest of the text that the leading process read.
      checkpoint: digest of the checkpoint that the weights start from.
    """

    config: ExperimentConfig
    digest: str
    folder: Path
    home: Path
    token: str
    corpus: str | None
    checkpoint: str | None


class Worker:
    """Keeps its text, its weights and its compiled programs from one cell to the next.

    Args:
      errand: the sweep.
    """

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self._laboratory: Laboratory | None = None
        self._cells: dict[str, Cell] = {}
        self._source: dict[str, Any] = {}

    def prepare(self) -> str:
        """Read what every cell needs.

        Returns:
          Host and process, in words.

        Raises:
          RuntimeError: this machine sees another folder, or another text or checkpoint, than the leading process.
          ValueError, TypeError, OSError: as `Laboratory`.
        """
        errand, config = self.errand, self.errand.config
        if errand.home.is_dir():
            os.chdir(errand.home)
        check_shared(errand.folder, errand.token)
        if config_hash(config) != errand.digest:
            raise RuntimeError(
                f"`rope_jax` must be of one version on every machine; {socket.gethostname()} has another one than the "
                f"machine that leads the sweep, {versions().get('rope-jax', 'not installed')}. Install the same."
            )
        laboratory = Laboratory(config, errand.folder, Reporter(Console(quiet=True)))
        digest = None if laboratory.origin is None else laboratory.origin["digest"]
        for setting, here, there in (
            ("data.source", laboratory.corpus, errand.corpus),
            ("model.checkpoint", digest, errand.checkpoint),
        ):
            if here != there:
                raise RuntimeError(
                    f"`{setting}` must lead to the same files on every machine; {socket.gethostname()} has others than "
                    "the machine that leads the sweep. Put them on storage that all share."
                )
        self._laboratory = laboratory
        self._cells = {cell_key(config, cell.row()): cell for cell in plan(config, laboratory.subject)}
        self._source = {"device": device_name(), "versions": versions(), "commit": commit()}
        return f"{socket.gethostname()}, process {os.getpid()}"

    def measure(self, key: str, rows: Sequence[Row]) -> Measured | None:
        """What the row of a cell is to hold, where it was measured among it; None where a result is missing.

        Args:
          key: of the cell.
          rows: the finished truncation baselines of its seed.

        Raises:
          RuntimeError: the weights of the cell are not in the run's folder.
        """
        assert self._laboratory is not None  # prepared first
        cell = self._cells[key]
        self._check_weights(self._laboratory, cell)
        measured = measure(self._laboratory, cell, rows)
        return None if measured is None else self._source | measured

    def _check_weights(self, laboratory: Laboratory, cell: Cell) -> None:
        """Refuses to train within another cell: workers side by side would write the same checkpoints."""
        base = (cell.seed, None, None)
        trainings = [other for other in self._cells.values() if other.metric == "training" and other != cell]
        for training in trainings:
            if training.weights not in (base, cell.weights):
                continue
            origin = (laboratory.corpus, self.errand.checkpoint)
            folder = checkpoint_folder(self.errand.folder, self.errand.config, training, origin)
            if not (folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir())):
                raise RuntimeError(
                    f"the checkpoints of {describe(training)} must be in {folder}; {socket.gethostname()} sees none. "
                    "Bring them back, or run once with --executor local, which trains them again."
                )


def check_shared(folder: Path, token: str, patience: float = PATIENCE) -> None:
    """Refuses a machine that does not see the folder that the leading process writes to.

    Args:
      folder: of the run.
      token: what the leading process wrote there.
      patience: seconds that network storage is given to show it.

    Raises:
      RuntimeError: the folder is absent, or another machine's of the same name.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            if (folder / TOKEN).read_text(encoding="utf-8") == token:
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"`output` must be on storage that every machine shares, since weights reach the workers through it; "
                f"{socket.gethostname()} does not see {folder} as the machine that leads the sweep wrote it. "
                "Give a shared folder: --output."
            )
        time.sleep(0.2)

"""results.jsonl: one line a finished cell, written whole, recognised by its key."""

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rope_jax.experiment.config import ExperimentConfig, bearing, config_dict, config_hash
from rope_jax.experiment.provenance import commit, device_name, versions
from rope_jax.experiment.rows import check_row, parse_rows

__all__ = ["Results", "cell_key", "check_row", "commit", "device_name", "parse_rows", "read_results", "versions"]

FILE = "results.jsonl"
CELL_FIELDS = ("phase", "seed", "method", "factor", "length", "metric")
TUNED_FIELDS = ("tuned_method", "tuned_factor")


def cell_key(config: ExperimentConfig, cell: Mapping[str, Any]) -> str:
    """What a cell is recognised by: sha256 of the config's hash and the fields that tell cells apart.

    Args:
        config: the experiment.
        cell: at least phase, seed, method, factor, length and metric; for the phase "tuned" also tuned_method and
            tuned_factor. Other entries are ignored, so a full row has the key of its cell.

    Raises:
        ValueError: one of these is missing.

    Example:
        >>> cell = {"phase": "base", "seed": 0, "method": "YaRN()", "factor": 4, "length": 256, "metric": "loss"}
        >>> len(cell_key(ExperimentConfig(name="a"), cell))
        64
    """
    fields = CELL_FIELDS + (TUNED_FIELDS if cell.get("phase") == "tuned" else ())
    missing = [field for field in fields if field not in cell]
    if missing:
        raise ValueError(f"`cell` must have {', '.join(fields)}; got none for {', '.join(missing)}. Add them.")
    named = {field: float(cell[field]) if field.endswith("factor") else cell[field] for field in fields}
    return hashlib.sha256(json.dumps([config_hash(config), named], sort_keys=True).encode()).hexdigest()


def read_results(path: str | Path) -> list[dict[str, Any]]:
    """The finished rows of a results.jsonl, or of the folder that holds one; reads only.

    A last line without its line end is half a row, cut by a kill, and is left out; so are cells that failed.

    Raises:
        ValueError: a whole line is not a row (see `check_row`).
        FileNotFoundError: no such file.
    """
    path = Path(path)
    return [row for row in parse_rows(path / FILE if path.is_dir() else path) if "error" not in row]


class Results:
    """The results of one config in one folder, open for adding; closes and unlocks as a context manager.

    Args:
        folder: made if absent.
        config: the experiment. Rows that bear another config's hash refuse the folder.
        corpus: digest of the text, None for a task without. Rows that bear another one refuse the folder.
        checkpoint: name, digest, parameters, trained length and BOS id of the checkpoint that the weights start from,
            None for weights that are trained here. Rows that bear another digest refuse the folder.

    Raises:
        ValueError: the folder holds results of another config, text or checkpoint, or a line that is not a row.
        RuntimeError: another run has the folder open.

    Example:
        with Results(folder, config) as results:
            cell = {"phase": "base", "seed": 0, "method": "YaRN()", "factor": 4.0, "length": 256, "metric": "loss"}
            if not results.done(cell_key(config, cell)):
                results.append({**cell, "label": "YaRN", "value": 1.5, "count": 768, "seconds": 2.0})
    """

    def __init__(
        self,
        folder: str | Path,
        config: ExperimentConfig,
        corpus: str | None = None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        self.config = config
        self.corpus = corpus
        self.checkpoint = None if checkpoint is None else dict(checkpoint)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._lock()
            rows = parse_rows(self.path)
            for row in rows:
                self._refuse_other(row)
            _drop_torn_line(self._file, self.path)
        except BaseException:
            os.close(self._file)
            raise
        self._rows = {row["key"]: row for row in rows if "error" not in row}
        self._stamp = {
            "config_hash": config_hash(config),
            "config": config_dict(config),
            "corpus": corpus,
            "checkpoint": self.checkpoint,
            "task": config.data.task,
            "trained_length": config.train.length,
            "device": device_name(),
            "versions": versions(),
            "commit": commit(),
        }

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlocks the folder; further rows are refused by the system."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def done(self, key: str) -> bool:
        """Whether a cell with this key is finished; a failed one is not."""
        return key in self._rows

    def rows(self) -> list[dict[str, Any]]:
        """The finished rows in the order of writing."""
        return list(self._rows.values())

    def append(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Writes a cell as one line, in one call, down to the disk.

        Args:
            row: the cell's fields (see `cell_key`), label, factor_rule, and value, count, seconds and what else was
                measured; or "error" in place of "value" for a cell that failed, which a later run tries again.

        Returns:
            The whole row: with key, config_hash, config, corpus, checkpoint, task, trained_length, device, versions and
            commit.

        Raises:
            ValueError: neither or both of value and error, a field of the wrong type (see `check_row`), a number that
                is not finite, or a cell that is finished.
        """
        if ("value" in row) == ("error" in row):
            raise ValueError(f"`row` must have either value or error; got {sorted(row)}. Give one of them.")
        key = cell_key(self.config, row)
        if self.done(key):
            raise ValueError(
                f"`row` must be a new cell; {[row[field] for field in CELL_FIELDS]} is done. Ask done(key)."
            )
        whole = {"key": key, **self._stamp, **row}
        try:
            line = json.dumps(whole, allow_nan=False).encode() + b"\n"
        except ValueError as error:
            cure = "Record a cell that diverged with error in place of value."
            raise ValueError(f"`row` must hold finite numbers; got value {row.get('value')!r}. {cure}") from error
        check_row(whole, "`row`")
        written = os.write(self._file, line)
        os.fsync(self._file)
        if written != len(line):
            raise OSError(
                f"{self.path} took {written} of {len(line)} bytes: is the disk full? Free space and start again."
            )
        if "value" in row:
            self._rows[key] = whole
        return whole

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"`folder` must belong to one run at a time; {self.path} is open in another one. "
                "Wait for it, or give another folder: --output."
            ) from None

    def _refuse_other(self, row: Mapping[str, Any]) -> None:
        """Raises when a row was made under settings that bear on numbers and differ from this config's."""
        if row["config_hash"] == config_hash(self.config):
            self._refuse_other_origin(
                "model.checkpoint", "checkpoint", _digest(row.get("checkpoint")), _digest(self.checkpoint)
            )
            self._refuse_other_origin("data.source", "text", row.get("corpus"), self.corpus)
            return
        try:
            here, there = bearing(config_dict(self.config)), bearing(row["config"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"`folder` must hold results of this config only; {self.path} has settings of another version of this "
                "program. Give another one: --output."
            ) from None
        differing = [
            f"{path} = {there.get(path)!r} there, {here.get(path)!r} here"
            for path in sorted(here.keys() | there.keys())
            if here.get(path) != there.get(path)
        ]
        raise ValueError(
            f"`folder` must hold results of this config only; {self.path} has others: {'; '.join(differing)}. "
            "Give another one: --output."
        )

    def _refuse_other_origin(self, setting: str, what: str, there: str | None, here: str | None) -> None:
        """Raises when a row was measured on another text, or started from another checkpoint, than this run reads."""
        if there != here:
            known, found = (f"digest {digest[:12]}" if digest else "none recorded" for digest in (there, here))
            raise ValueError(
                f"`{setting}` must lead to the {what} of the finished rows, {known} in {self.path}; got {found}: the "
                f"files or their names differ. Restore that {what}, or give another folder: --output."
            )


def _digest(checkpoint: Mapping[str, Any] | None) -> str | None:
    return None if checkpoint is None else str(checkpoint.get("digest"))


def _drop_torn_line(file: int, path: Path) -> None:
    """Cuts what follows the last line end: the half row of a killed run."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.ftruncate(file, content.rfind(b"\n") + 1)
        os.fsync(file)

"""The rows of results.jsonl as they were written, and a word on every row that is not shown."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_jax.experiment.results import FILE

Row = dict[str, Any]

METRICS = ("loss", "truncated_loss", "passkey_accuracy", "training")
STAMP = ("key", "config_hash", "config", "task", "trained_length")
REQUIRED = (*STAMP, "phase", "method", "label", "factor", "length", "seed", "metric")


class ResultsError(ValueError):
    """A results file that no report can be made from."""


@dataclass(frozen=True)
class Run:
    """Finished rows of the newest configuration, failed rows, and notes on what was set aside."""

    rows: tuple[Row, ...]
    failed: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings of the newest row."""
        config: dict[str, Any] = (self.rows or self.failed)[-1]["config"]
        return config


def read_run(path: Path) -> Run:
    """Read one results file.

    Args:
        path: the results.jsonl of a run's folder.

    Returns:
        The newest row of every cell, the failed rows, and notes on rows that are left out.

    Raises:
        ResultsError: no such file, no row in it, or a line that is no row.

    Example:
        >>> read_run(Path("nowhere/results.jsonl"))  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ResultsError: `results.jsonl` must exist; got no file at nowhere/results.jsonl. Run the sweep first.
    """
    if not path.is_file():
        raise ResultsError(f"`{FILE}` must exist; got no file at {path}. Run the sweep first.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ResultsError(f"`{FILE}` must be UTF-8 text; got {error.reason} in {path}. Sweep again.") from None
    rows, notes = _parse(text, path)
    if not rows:
        raise ResultsError(f"`{FILE}` must hold at least one row; got none in {path}. Run the sweep first.")
    return settle(rows, notes)


def settle(rows: Sequence[Row], notes: Sequence[str] = ()) -> Run:
    """Part rows into shown, failed and set aside: the newest configuration is shown, a cell's newest row wins."""
    said = list(notes)
    newest = rows[-1]["config_hash"]
    current = [row for row in rows if row["config_hash"] == newest]
    if len(current) < len(rows):
        earlier = len(rows) - len(current)
        said.append(f"The file also holds {_rows(earlier)} of an earlier configuration, not shown here.")
    unknown = sorted({str(row["metric"]) for row in current} - set(METRICS))
    if unknown:
        said.append(f"Rows of a metric that this page does not know are not shown: {', '.join(unknown)}.")
    finished = [row for row in current if "error" not in row and row["metric"] in METRICS]
    latest = {row["key"]: row for row in finished}
    if len(latest) < len(finished):
        said.append(f"{_rows(len(finished) - len(latest))} measured again later; the latest of each cell is shown.")
    failed = [row | {"finished_later": row["key"] in latest} for row in current if "error" in row]
    return Run(tuple(latest.values()), tuple(failed), tuple(said))


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def _parse(text: str, path: Path) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    whole, _, torn = text.rpartition("\n")  # what follows the last line end is half a row of a stopped run
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ResultsError(_complaint("one JSON object a line", error.msg, number, path)) from None
        rows.append(_checked(row, number, path))
    return rows, ["The last line of the file was cut off by a stopped run; its cell is not shown."] if torn else []


def _checked(row: Any, number: int, path: Path) -> Row:
    if not isinstance(row, dict):
        raise ResultsError(_complaint("one JSON object a line", f"a {type(row).__name__}", number, path))
    required = REQUIRED if "error" in row else (*REQUIRED, "value")
    missing = [name for name in required if name not in row]
    if missing:
        raise ResultsError(_complaint(f"`{missing[0]}` in every row", "a row without it", number, path))
    if "error" in row:
        return row
    value = row["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ResultsError(_complaint("a finite number as `value`", repr(value), number, path))
    return row


def _complaint(rule: str, got: str, number: int, path: Path) -> str:
    return f"`{FILE}` must hold {rule}; got {got} on line {number} of {path}. Delete that line and sweep again."

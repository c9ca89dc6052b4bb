"""The rows of results.jsonl as they were written, and a word on every row that is not shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_jax.experiment.results import FILE, parse_rows

Row = dict[str, Any]

METRICS = ("loss", "truncated_loss", "passkey_accuracy", "training")


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
        rows = parse_rows(path)
    except ValueError as error:
        raise ResultsError(str(error)) from None
    torn = not path.read_bytes().endswith(b"\n")
    notes = ["The last line of the file was cut off by a stopped run; its cell is not shown."] if torn else []
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

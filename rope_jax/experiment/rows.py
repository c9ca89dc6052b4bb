"""What a line of results.jsonl must be to count as a row: the names it has to have, and their types."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

TABLES = ("data", "model", "train", "sweep", "evaluate", "finetune")
Rule = tuple[str, Callable[[Any], bool]]


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _finite(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _settings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(table), dict) for table in TABLES)


TEXT: Rule = ("be text", _text)
TOKENS: Rule = ("be a whole number of tokens", _whole(1))
NUMBER: Rule = ("be a finite number", _finite)
REQUIRED = MappingProxyType(
    {
        "key": TEXT,
        "config_hash": TEXT,
        "config": (f"be settings with the tables {', '.join(TABLES)}", _settings),
        "task": TEXT,
        "trained_length": TOKENS,
        "phase": TEXT,
        "method": TEXT,
        "label": TEXT,
        "metric": TEXT,
        "factor": NUMBER,
        "length": TOKENS,
        "seed": ("be a whole number from 0 up", _whole(0)),
    }
)
TUNED = MappingProxyType({"tuned_method": TEXT, "tuned_factor": NUMBER})


def check_row(row: Mapping[str, Any], place: str) -> None:
    """Refuses what is not a row; further fields are the metric's own affair.

    Args:
        row: the fields of one line.
        place: where it stands, for the message: the file and the line.

    Raises:
        ValueError: a field that every row has is missing or of another type; neither value nor error, or both; a
            value that is not a finite number.

    Example:
        >>> check_row({}, "results.jsonl, line 1")
        Traceback (most recent call last):
        ValueError: results.jsonl, line 1: `key` must be text; got nothing. Repair or delete that line.
    """
    rules = dict(REQUIRED) | (dict(TUNED) if row.get("phase") == "tuned" else {})
    if "error" in row and "value" in row:
        raise _refusal(place, "value", "be absent beside `error`", row)
    rules |= {"error": TEXT} if "error" in row else {"value": NUMBER}
    for name, (rule, holds) in rules.items():
        if name not in row or not holds(row[name]):
            raise _refusal(place, name, rule, row)


def parse_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of all whole lines of a file; half a line at its end, cut by a kill, is left out.

    Raises:
        ValueError: a whole line is not a row; file and line are named.
        FileNotFoundError: no such file.
    """
    *whole, _ = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(whole, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path} must hold one JSON object a line; line {number} is not one. Repair or delete it.")
        check_row(row, f"{path}, line {number}")
        rows.append(row)
    return rows


def _refusal(place: str, name: str, rule: str, row: Mapping[str, Any]) -> ValueError:
    got = repr(row[name])[:80] if name in row else "nothing"
    return ValueError(f"{place}: `{name}` must {rule}; got {got}. Repair or delete that line.")

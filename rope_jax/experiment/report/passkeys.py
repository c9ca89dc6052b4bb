"""Is the key still found in a longer context: one class per method, by the intervals of its accuracies."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from types import MappingProxyType

from rope_jax.experiment.intervals import CONFIDENCE, Interval, difference, student_quantile, wilson
from rope_jax.experiment.report.read import Row
from rope_jax.experiment.report.series import Cell, Series, lengths_of
from rope_jax.experiment.report.words import LEVEL, SPACE, counted, listing, percent, share_ends
from rope_jax.experiment.summary import headline_length

KEEPS, LOSES, UNDECIDED, GUESSES = "keeps finding it", "loses some", "undecided", "guesses"
UNLEARNED, UNKNOWN = "never learned it", "unknown"
KINDS = (KEEPS, LOSES, UNDECIDED, GUESSES, UNLEARNED, UNKNOWN)
TOLERATED = 0.1
"""A share of the keys that an accuracy may lie below another, or above chance, and count as equal to it."""
MEANING = MappingProxyType(
    {
        KEEPS: f"as good as at the trained length: the interval of the difference ends above {-100 * TOLERATED:.0f}"
        f"{SPACE}points".replace("-", "\N{MINUS SIGN}"),
        LOSES: "worse than at the trained length, better than chance, by the intervals",
        UNDECIDED: "these keys are too few to tell which of the other words holds",
        GUESSES: f"the interval reaches down to chance and ends less than {100 * TOLERATED:.0f}{SPACE}points above it",
        UNLEARNED: "it guesses at the trained length, so longer ones say nothing",
        UNKNOWN: "this length or the trained one has no finished measurement",
    }
)


def chance(rows: Sequence[Row]) -> float | None:
    """Accuracy of guessing a token of the key, as the newest rows or their settings have it; None: they do not say."""
    for row in reversed(rows):
        if row.get("chance") is not None:
            return float(row["chance"])
    symbols = (rows[-1]["config"].get("data") or {}).get("key_symbols") if rows else None
    return 1.0 / symbols if symbols else None


def unit(series: Sequence[Series]) -> str:
    """What the key is made of."""
    return "tokens" if any(one.published for one in series) else "symbols"


def matching(series: Sequence[Series]) -> str:
    """What finding the key does not show."""
    if any(one.published for one in series):
        return "The key is the only number in the text: this is finding digits, not understanding."
    return "The key comes from an alphabet that the filler does not use: this is content matching, not reading."


def comparison(series: Sequence[Series]) -> tuple[list[Series], int]:
    """The series that the answer is about, those before a fine-tune where there are some, and the length compared."""
    base = [one for one in series if one.phase == "base"]
    return base or list(series), headline_length(lengths_of(series), series[0].trained_length)


def asked(cell: Cell) -> int:
    """Keys asked for; their symbols are not independent, so a key counts once."""
    return max(1, round(sum(row.get("keys") or _keys(row) for row in cell.rows)))


def interval(cell: Cell) -> Interval:
    """Wilson's interval of an accuracy over the keys; of several seeds Student's over the seeds where that is wider."""
    wide = _with_seeds(wilson(cell.value, asked(cell)), [row["value"] for row in cell.rows])
    return Interval(max(0.0, wide.low), min(1.0, wide.high))


def classify(here: Cell | None, trained: Cell | None, guess: float | None) -> str:
    """Name what a length does to the search for the key, by the intervals of the two accuracies."""
    if here is None or trained is None:
        return UNKNOWN
    for cell, kind in ((trained, UNLEARNED), (here, GUESSES)):
        if not by_more_than_chance(cell, guess):
            return kind if guess is None or interval(cell).high < guess + TOLERATED else UNDECIDED
    change = change_of(here, trained)
    if change.high < 0.0:
        return LOSES
    return KEEPS if change.low > -TOLERATED else UNDECIDED


def change_of(cell: Cell, other: Cell) -> Interval:
    """Interval of the difference of two accuracies.

    Over the keys as if they were separate ones, although methods are asked the same, since rows do not hold single
    keys; of several seeds Student's over their differences where that is wider.
    """
    found = difference(cell.value, wilson(cell.value, asked(cell)), other.value, wilson(other.value, asked(other)))
    second = {row["seed"]: row["value"] for row in other.rows}
    return _with_seeds(found, [row["value"] - second[row["seed"]] for row in cell.rows if row["seed"] in second])


def by_more_than_chance(cell: Cell, guess: float | None) -> bool:
    """Whether the interval of an accuracy lies above that of guessing; true where chance is not known."""
    return guess is None or interval(cell).low > guess


def classes(series: Sequence[Series], length: int, guess: float | None) -> list[tuple[str, list[tuple[str, str]]]]:
    """Class by class, best first: the methods in it and their accuracies."""
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in KINDS}
    for one in by_accuracy(series, length):
        here, trained = one.at(length), one.at(one.trained_length)
        before = percent(trained.value if trained else None)
        text = f"{numbers(here)}, {before} at the trained length" if here else "not measured at this length"
        found[classify(here, trained, guess)].append((one.name, text))
    return [(kind, members) for kind, members in found.items() if members]


def numbers(cell: Cell) -> str:
    """An accuracy and its interval: 66.7 % (20.8–93.9)."""
    return f"{percent(cell.value)} ({share_ends(interval(cell))})"


def not_told_apart(series: Sequence[Series], length: int) -> list[str]:
    """Methods that may find the key as often as the best: the interval of the difference does not end above zero."""
    cells = [(one.name, cell) for one in by_accuracy(series, length) if (cell := one.at(length))]
    return [name for name, cell in cells[1:] if not change_of(cells[0][1], cell).low > 0.0]


def remark(series: Sequence[Series], length: int) -> str:
    """A line under the classes: what the brackets are, and which methods are not told apart from the best."""
    first, *_ = by_accuracy(series, length)
    cell = first.at(length)
    if cell is None:
        return ""
    said = f"In brackets the {LEVEL} interval, from {sample(cell)}."
    close = not_told_apart(series, length)
    if close:
        said += (
            f" Not told apart from {first.name}, which finds most: {listing(close)}. The best is favoured by chance."
        )
    return said


def sample(cell: Cell) -> str:
    """What an accuracy rests on: 128 keys, 3 seeds."""
    keys = counted(asked(cell), "key")
    return f"{keys}, {counted(len(cell.rows), 'seed')}" if len(cell.rows) > 1 else keys


def by_accuracy(series: Sequence[Series], length: int) -> list[Series]:
    """The best first, those without a measurement last."""
    return sorted(series, key=lambda one: -cell.value if (cell := one.at(length)) else 1.0)


def _with_seeds(found: Interval, values: Sequence[float]) -> Interval:
    """An interval, or where it is wider at an end that of the mean of the seeds' values, by Student's t."""
    if len(values) < 2:
        return found
    middle = fmean(values)
    half = student_quantile(CONFIDENCE, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(min(found.low, middle - half), max(found.high, middle + half))


def _keys(row: Row) -> float:
    symbols: float = (row.get("count") or 0) / row["config"]["data"].get("key_length", 1)
    return symbols

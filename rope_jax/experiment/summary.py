"""Numbers that the closing table and the report both read off the rows of a sweep."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Any

from rope_jax.experiment.intervals import CONFIDENCE, Interval, student_quantile

Row = Mapping[str, Any]

# Equal schedules that were computed in two ways give losses that differ by less than this: nats per token.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Gain:
    """A mean context gain, or a difference of two, in nats per token, and how far windows and seeds may move it."""

    value: float
    of_windows: float
    """Standard error from the spread over windows; every seed reads the same ones, so seeds do not lessen it."""
    windows: int
    of_seeds: float = 0.0
    """Standard error from the spread over seeds; 0 for one seed, whose spread is not known."""
    seeds: int = 1

    @property
    def stderr(self) -> float:
        """Standard error of the value."""
        return math.hypot(self.of_windows, self.of_seeds)

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Interval of the value by Student's t, the parts of windows and of seeds each with its own freedom.

        value -+ sqrt((t(windows - 1) of_windows)^2 + (t(seeds - 1) of_seeds)^2)

        Args:
            confidence: of the two-sided interval.

        Example:
            >>> [round(end, 3) for end in Gain(0.03, of_windows=0.01, windows=4).interval()]
            [-0.002, 0.062]
        """
        half = student_quantile(confidence, self.windows - 1) * self.of_windows
        if self.seeds > 1:
            half = math.hypot(half, student_quantile(confidence, self.seeds - 1) * self.of_seeds)
        return Interval(self.value - half, self.value + half)


def windows_of(row: Row) -> int:
    """Windows that a `"loss"` row is a mean over: its targets, a quarter of the trained length in each."""
    return round(4 * (row.get("count") or 0) / row["trained_length"])


def combined_gain(rows: Iterable[Row]) -> Gain:
    """Mean context gain over the `"loss"` rows of one length (one row per seed).

    gain = mean_s(gain_s),   of_windows^2 = mean_s(stderr_s^2),   of_seeds^2 = var_s(gain_s) / seeds

    Every seed reads the same windows, so what a window adds to the error does not average out over seeds; what the
    seed adds does.

    Returns:
        The gain; above zero the whole window predicts the tail better than its last trained-length tokens do.
    """
    chosen = list(rows)
    gains = [row["context_gain"] for row in chosen]
    of_windows = math.sqrt(fmean(row["context_gain_stderr"] ** 2 for row in chosen))
    of_seeds = math.sqrt(variance(gains) / len(gains)) if len(gains) > 1 else 0.0
    return Gain(fmean(gains), of_windows, min(map(windows_of, chosen)), of_seeds, len(gains))


def gain_difference(rows: Iterable[Row], others: Iterable[Row]) -> Gain:
    """How much larger the context gain of one method is than another's, over the seeds that both have.

    Paired over windows where the rows hold the gain of each window (`"window_gains"`). Else the two standard errors
    are added, the most that the difference can have, whatever the two methods share.

    Args:
        rows: the `"loss"` rows of one method and length, one per seed.
        others: those of the other, with at least one seed in common.

    Example:
        >>> row = {"seed": 0, "context_gain": 0.3, "context_gain_stderr": 0.02, "count": 64, "trained_length": 64}
        >>> gain_difference([row], [row | {"context_gain": 0.1}]).stderr
        0.04
    """
    second = {row["seed"]: row for row in others}
    return combined_gain([_less(row, second[row["seed"]]) for row in rows if row["seed"] in second])


def effective_length(rows: Iterable[Row]) -> tuple[int, int]:
    """Longest evaluated length up to which the full window does no worse than truncation: at least, and at most.

    at least: max { T : low(T') >= 0 for every evaluated T' <= T }
    at most:  max { T : high(T') >= 0 for every evaluated T' <= T }

    with the ends of the context gain's 95 % interval, to within 1e-6 nats of rounding.

    Args:
        rows: the `"loss"` rows of one curve (same phase, weights, method and factor rule), any order, any number of
            seeds: the seeds of a length are averaged first. Failed rows must be left out.

    Returns:
        Both lengths in tokens, equal where noise leaves nothing open; 0 where even the shortest evaluated length is
        not known to be reached (the first), or is known not to be (the second), or without rows.

    Example:
        >>> row = {"length": 64, "context_gain": 0.0, "context_gain_stderr": 0.0, "count": 64, "trained_length": 64}
        >>> effective_length([row, row | {"length": 128, "context_gain": -0.5, "context_gain_stderr": 0.1}])
        (64, 64)
    """
    by_length: dict[int, list[Row]] = {}
    for row in rows:
        by_length.setdefault(row["length"], []).append(row)
    intervals = {length: combined_gain(by_length[length]).interval() for length in sorted(by_length)}
    return _reached((length, one.low) for length, one in intervals.items()), _reached(
        (length, one.high) for length, one in intervals.items()
    )


def headline_length(lengths: Iterable[int], trained_length: int) -> int:
    """The length that the summary quotes: four times the trained one where it was evaluated, else the longest."""
    evaluated = set(lengths)
    return 4 * trained_length if 4 * trained_length in evaluated else max(evaluated)


def _reached(ends: Iterable[tuple[int, float]]) -> int:
    """The last length before the first end below zero."""
    longest = 0
    for length, end in ends:
        if end < -ROUNDING:
            break
        longest = length
    return longest


def _less(row: Row, other: Row) -> Row:
    """A row whose gain is the difference of the gains of two."""
    stderr = row["context_gain_stderr"] + other["context_gain_stderr"]
    pairs = _pairs(row.get("window_gains"), other.get("window_gains"))
    if pairs:
        stderr = stdev(mine - its for mine, its in pairs) / math.sqrt(len(pairs))
    gain = row["context_gain"] - other["context_gain"]
    windows = min(row, other, key=windows_of)
    return {**windows, "context_gain": gain, "context_gain_stderr": stderr}


def _pairs(mine: Sequence[float] | None, its: Sequence[float] | None) -> list[tuple[float, float]]:
    return list(zip(mine, its, strict=True)) if mine and its and len(mine) == len(its) else []

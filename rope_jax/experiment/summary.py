"""Numbers that the closing table and the report both read off the rows of a sweep."""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, variance
from typing import Any

Row = Mapping[str, Any]

# Equal schedules that were computed in two ways give losses that differ by less than this: nats per token.
ROUNDING = 1e-6


def combined_gain(rows: Iterable[Row]) -> tuple[float, float]:
    """Mean context gain and its standard error over the `"loss"` rows of one length (one row per seed).

    gain = mean_s(gain_s),   stderr = sqrt(mean_s(stderr_s^2) + var_s(gain_s) / seeds)

    Every seed reads the same windows, so what a window adds to the error does not average out over seeds; what the
    seed adds does.

    Returns:
        (gain, stderr) in nats per token; a gain above zero means that the whole window predicts the tail better
        than its last trained-length tokens do.
    """
    chosen = list(rows)
    gains = [row["context_gain"] for row in chosen]
    of_windows = fmean(row["context_gain_stderr"] ** 2 for row in chosen)
    of_seeds = variance(gains) / len(gains) if len(gains) > 1 else 0.0
    return fmean(gains), math.sqrt(of_windows + of_seeds)


def effective_length(rows: Iterable[Row]) -> int:
    """Longest evaluated length up to which the full window does no worse than truncation.

    max { T : context_gain(T') >= -2 stderr(T') for every evaluated T' <= T },   to within 1e-6 nats of rounding

    Args:
        rows: the `"loss"` rows of one curve (same phase, weights, method and factor rule), any order, any number of
            seeds: the seeds of a length are averaged first. Failed rows must be left out.

    Returns:
        The length in tokens; 0 when even the shortest evaluated length does worse than truncation, or without rows.

    Example:
        >>> row = {"length": 64, "context_gain": 0.0, "context_gain_stderr": 0.0}
        >>> effective_length([row, row | {"length": 128, "context_gain": -0.5, "context_gain_stderr": 0.1}])
        64
    """
    by_length: dict[int, list[Row]] = {}
    for row in rows:
        by_length.setdefault(row["length"], []).append(row)
    longest = 0
    for length in sorted(by_length):
        gain, stderr = combined_gain(by_length[length])
        if gain < -2.0 * stderr - ROUNDING:
            break
        longest = length
    return longest


def headline_length(lengths: Iterable[int], trained_length: int) -> int:
    """The length that the summary quotes: four times the trained one where it was evaluated, else the longest."""
    evaluated = set(lengths)
    return 4 * trained_length if 4 * trained_length in evaluated else max(evaluated)

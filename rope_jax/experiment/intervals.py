"""Between which ends a number measured on few samples may lie: Student's t for means, Wilson's score for shares."""

import math
from statistics import NormalDist
from typing import NamedTuple

CONFIDENCE = 0.95
HALVINGS = 60  # of a right angle: past the last bit of a float


class Interval(NamedTuple):
    """Both ends, in the unit of what is estimated."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value is not ruled out."""
        return self.low <= value <= self.high


def student_quantile(confidence: float, freedom: int) -> float:
    """The t that a Student variable exceeds in size with probability 1 - confidence.

    P(|T| <= t) = confidence,   t = sqrt(freedom) tan(angle)

    Args:
        confidence: of the two-sided interval, between 0 and 1.
        freedom: degrees of freedom, samples - 1.

    Raises:
        ValueError: no degree of freedom, or a confidence that is not between 0 and 1.

    References:
        Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: finite sums, exact for whole
        degrees of freedom.

    Example:
        >>> [round(student_quantile(0.95, freedom), 3) for freedom in (1, 3, 47)]
        [12.706, 3.182, 2.012]
    """
    _check_confidence(confidence)
    if freedom < 1:
        raise ValueError(f"`freedom` must be at least 1 degree; got {freedom}. Measure two samples or more.")
    low, high = 0.0, math.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def wilson(share: float, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a share: every p with |share - p| <= z sqrt(p (1 - p) / trials).

    Args:
        share: hits per trial, 0 to 1; it may be a mean of trials that are right in part, which spread less than hits
            and misses do.
        trials: independent ones.
        confidence: of the two-sided interval.

    Raises:
        ValueError: no trial, a share outside 0 to 1, or a confidence that is not between 0 and 1.

    References:
        E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Example:
        >>> [round(end, 3) for end in wilson(2 / 3, trials=3)]
        [0.208, 0.939]
    """
    _check_confidence(confidence)
    if trials < 1:
        raise ValueError(f"`trials` must be at least 1; got {trials}. Measure one trial or more.")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"`share` must lie between 0 and 1; got {share}. Give hits per trial.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    weight = z * z / trials
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    # The ends of no hit and of all hits are 0 and 1, which rounding must not miss.
    return Interval(middle - half if share > 0.0 else 0.0, middle + half if share < 1.0 else 1.0)


def difference(first: float, around: Interval, second: float, around_second: Interval) -> Interval:
    """Interval of first - second of two independent estimates, from the interval of each.

    low = d - sqrt((first - low_1)^2 + (high_2 - second)^2),   high = d + sqrt((high_1 - first)^2 + (second - low_2)^2)

    References:
        R. G. Newcombe, Interval estimation for the difference between independent proportions, Statistics in Medicine
        17 (1998), method 10.

    Example:
        >>> [round(end, 2) for end in difference(2 / 3, wilson(2 / 3, 3), 1.0, wilson(1.0, 3))]
        [-0.79, 0.29]
    """
    middle = first - second
    down = math.hypot(first - around.low, around_second.high - second)
    up = math.hypot(around.high - first, second - around_second.low)
    return Interval(middle - down, middle + up)


def _inside(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for index in range(freedom // 2):
        total += term
        term *= cosine * cosine * (2 * index + 1 + odd) / (2 * index + 2 + odd)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"`confidence` must lie between 0 and 1; got {confidence}. 0.95 is usual.")

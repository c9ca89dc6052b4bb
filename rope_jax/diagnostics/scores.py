"""Whether a similar key is still preferred to a random one, by distance."""

from typing import Any

import numpy as np

from rope_jax.diagnostics.waves import check_tokens, single
from rope_jax.schedule import FrequencySchedule

# Distances whose cosines are held in memory at a time.
CHUNK = 8192


def base_bound(length: float) -> float:
    """The least base with which plain RoPE can still prefer similar tokens at every distance up to a length.

        theta >= 0.0424 length^1.628

    A fit, to the bases at which `sum_i cos(distance inv_freq_i)` first stays at or above 0 up to `length` (heads of
    128 channels, lengths from 1,000 to 1,000,000); `similarity_length` evaluates the sum itself for a given schedule.

    Args:
      length: tokens.

    Raises:
      ValueError: a length below 1.

    Reference: Xu et al., arXiv 2405.14591, fig. 1.

    Example:
      >>> f"{base_bound(32_768):.2g}"
      '9.5e+05'
    """
    return float(0.0424 * check_tokens("length", length) ** 1.628)


def mean_score(schedule: FrequencySchedule, distances: Any) -> np.ndarray:
    """What a key equal to the query scores at a distance, next to what it scores at distance 0.

        B(distance) = mean_i cos(distance inv_freq_i)

    The expected rotated score of a similar key less that of a random one is this times a positive constant, when the
    channels of queries and keys are independent and alike. It falls with the distance, and where it is negative a
    random key is preferred. The attention scale is left out.

    Args:
      schedule: without leading axes.
      distances: [...] tokens.

    Returns:
      [...] float64, between -1 and 1.

    Raises:
      ValueError: a stack of schedules.

    Reference: Xu et al., arXiv 2405.14591; Su et al., arXiv 2104.09864, sec. 3.4.3, bounds the decay.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> mean_score(geometric_schedule(128), [0, 100, 1000, 10_000]).round(3).tolist()
      [1.0, 0.477, 0.159, -0.028]
    """
    inv_freq = single(schedule)
    return np.cos(np.asarray(distances, np.float64)[..., None] * inv_freq).mean(-1)


def similarity_length(schedule: FrequencySchedule, longest: int) -> int:
    """The largest length, up to `longest`, at every distance of which similar keys are preferred to random ones.

        max n <= longest with mean_score(schedule, d) >= 0 for all d < n

    Args:
      schedule: without leading axes.
      longest: tokens; how far to look.

    Returns:
      Tokens; `longest` when the score stays at or above 0 throughout.

    Raises:
      ValueError: a stack of schedules, or a length below 1.

    Reference: Xu et al., arXiv 2405.14591.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> similarity_length(geometric_schedule(128, theta=28_800.0), 100_000)
      4275
    """
    longest = int(check_tokens("longest", longest))
    for start in range(0, longest, CHUNK):
        scores = mean_score(schedule, np.arange(start, min(start + CHUNK, longest)))
        if np.any(scores < 0):
            return start + int(np.argmax(scores < 0))
    return longest

"""How long the wave of each pair is, and how often it turns."""

import math
from typing import Any

import numpy as np

from rope_jax.schedule import FrequencySchedule


def wavelengths(schedule: FrequencySchedule) -> np.ndarray:
    """Tokens that each pair takes for one turn: `lambda_i = 2 pi / inv_freq_i`.

    Args:
      schedule: any leading axes.

    Returns:
      [*stack, pairs] float64, tokens; infinite for a pair that stands still.

    Reference: Peng et al., arXiv 2309.00071.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> wavelengths(geometric_schedule(8)).round(2).tolist()
      [6.28, 62.83, 628.32, 6283.19]
    """
    with np.errstate(divide="ignore"):
        return 2 * math.pi / np.abs(schedule.float64())


def turns(schedule: FrequencySchedule, length: float) -> np.ndarray:
    """How often each pair turns within a length: `rho_i = length inv_freq_i / 2 pi`.

    Args:
      schedule: any leading axes.
      length: tokens.

    Returns:
      [*stack, pairs] float64, turns.

    Raises:
      ValueError: a length below 1.

    Reference: Peng et al., arXiv 2309.00071, which calls it r.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> turns(geometric_schedule(8), 2048).round(3).tolist()
      [325.949, 32.595, 3.259, 0.326]
    """
    return check_tokens("length", length) * np.abs(schedule.float64()) / (2 * math.pi)


def critical_dimension(schedule: FrequencySchedule, length: float) -> Any:
    """Channels whose pair makes more than one turn within the trained length: two for each such pair.

        2 #{i : length inv_freq_i > 2 pi},   for a plain schedule  2 ceil(pairs log_theta(length / 2 pi))

    The model has seen these channels at every phase; the others it has seen over part of their circle only.

    Args:
      schedule: any leading axes.
      length: tokens the model was trained on.

    Returns:
      An integer, or integers [*stack].

    Raises:
      ValueError: a length below 1.

    Reference: Liu et al., arXiv 2310.05209.

    Differs from the paper's closed form where every pair turns more than once: never more than the rotary width.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> critical_dimension(geometric_schedule(128), 4096)
      92
    """
    count = 2 * np.count_nonzero(turns(schedule, length) > 1, axis=-1)
    return count if schedule.stack else int(count)


def pair_of_turns(rotary_dim: int, theta: float, length: float, count: float = 1.0) -> float:
    """The fractional index of the plain pair that makes so many turns within a length.

        c(r) = rotary_dim ln(length / (2 pi r)) / (2 ln theta)

    YaRN's ramp runs from `c(beta_fast)` to `c(beta_slow)`, before both are rounded and clamped.

    Args:
      rotary_dim: channels that turn.
      theta: the base.
      length: tokens.
      count: r, turns.

    Raises:
      ValueError: a number that is not above 0, or a base that is not above 1.

    Reference: the code published with Peng et al., arXiv 2309.00071.

    Example:
      >>> [round(pair_of_turns(64, 150_000.0, 4096, turns), 4) for turns in (32.0, 1.0)]
      [8.0928, 17.398]
    """
    if not (count > 0 and theta > 1):
        raise ValueError(f"`count` must be above 0 and `theta` above 1; got {count} and {theta}.")
    return rotary_dim * math.log(check_tokens("length", length) / (2 * math.pi * count)) / (2 * math.log(theta))


def check_tokens(argument: str, value: Any) -> float:
    """A number of tokens, refused unless it is finite and at least 1."""
    known = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not known or not (math.isfinite(value) and value >= 1):
        raise ValueError(f"`{argument}` must be a number of tokens, at least 1; got {value!r}.")
    return float(value)


def single(schedule: FrequencySchedule) -> np.ndarray:
    """The frequencies of a schedule without leading axes."""
    if schedule.stack:
        raise ValueError(
            f"`schedule` must be one schedule; got leading axes {schedule.stack}. Take one with "
            "jax.tree.map(lambda leaf: leaf[0], schedule)."
        )
    return schedule.float64()

"""Phases that training never showed, and the length up to which there are none."""

import math

import numpy as np

from rope_jax.diagnostics.stretching import SAME, stretch
from rope_jax.diagnostics.waves import single, turns
from rope_jax.schedule import FrequencySchedule


def unseen_phase(
    schedule: FrequencySchedule, plain: FrequencySchedule, trained_length: float, length: float
) -> np.ndarray:
    """The share of a turn that each pair reaches within a length and training never showed.

        max(0, min(1, length inv_freq_i / 2 pi) - min(1, trained_length plain.inv_freq_i / 2 pi))

    Args:
      schedule: what turns now.
      plain: what turned in training; of equally many pairs.
      trained_length, length: tokens.

    Returns:
      [*stack, pairs] float64 from 0 to 1.

    Raises:
      ValueError: a length below 1.

    Reference: the out-of-distribution phases of Liu et al., arXiv 2310.05209, as a share of the circle.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> plain = geometric_schedule(8)
      >>> unseen_phase(plain, plain, 2048, 4096).round(3).tolist()
      [0.0, 0.0, 0.0, 0.326]
    """
    reached, shown = (np.minimum(turns(s, n), 1.0) for s, n in ((schedule, length), (plain, trained_length)))
    share = np.maximum(reached - shown, 0.0)
    return np.where(share > SAME, share, 0.0)


def effective_length(schedule: FrequencySchedule, plain: FrequencySchedule, trained_length: float) -> float:
    """The largest length up to which no pair leaves the phases that it showed in training: what the schedule claims.

        min over pairs with trained_length plain.inv_freq_i < 2 pi   of   trained_length plain.inv_freq_i / inv_freq_i

    A pair that made a whole turn in training has shown them all and sets no limit. The claim is about phases only: a
    model may do worse (interpolated neighbours are harder to tell apart) or, trained further, better.

    Args:
      schedule: what turns now, without leading axes.
      plain: what turned in training.
      trained_length: tokens.

    Returns:
      Whole tokens; infinite where every pair made a whole turn in training or no longer turns.

    Raises:
      ValueError: a stack of schedules, or a length below 1.

    Example:
      >>> from rope_jax import Llama3, geometric_schedule
      >>> plain = geometric_schedule(64, theta=5e5)
      >>> effective_length(Llama3(factor=32.0, original_length=8192)(plain), plain, 8192)
      262144.0
    """
    single(schedule)
    limits = np.where(turns(plain, trained_length) < 1, trained_length * stretch(schedule, plain), math.inf)
    # A quotient of two frequencies may end a rounding below the whole number that it is.
    return float(np.floor(np.min(limits) * (1 + 1e-9)))

"""What a scaling method did with each pair: its stretch, and a word for it."""

import numpy as np

from rope_jax.schedule import FrequencySchedule

VERDICTS = ("kept", "blended", "interpolated", "faster", "removed")
# Relative changes below this are rounding.
SAME = 1e-6


def stretch(schedule: FrequencySchedule, plain: FrequencySchedule) -> np.ndarray:
    """How much longer the wave of each pair has become: `plain.inv_freq_i / inv_freq_i`.

    Args:
      schedule, plain: of equally many pairs; leading axes broadcast.

    Returns:
      [*stack, pairs] float64: 1 where nothing changed, the factor where a pair is interpolated by it, below 1 where it
      turns faster, infinite where it no longer turns (1 where it never did).

    Raises:
      ValueError: schedules of different widths.

    Example:
      >>> from rope_jax import Llama3, geometric_schedule
      >>> plain = geometric_schedule(64, theta=5e5)
      >>> stretch(Llama3(factor=32.0, original_length=8192)(plain), plain)[[0, 16, 31]].round(3).tolist()
      [1.0, 3.292, 32.0]
    """
    if schedule.pairs != plain.pairs:
        raise ValueError(f"`plain` must have the schedule's {schedule.pairs} pairs; got {plain.pairs}.")
    own, old = np.abs(schedule.float64()), np.abs(plain.float64())
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((own == 0) & (old == 0), 1.0, old / own)


def verdicts(schedule: FrequencySchedule, plain: FrequencySchedule, factor: float | None = None) -> np.ndarray:
    """What a scaling method did with each pair.

    Args:
      schedule, plain: of equally many pairs; leading axes broadcast.
      factor: target length / trained length; None takes the largest finite stretch, so that the most stretched pairs
        count as interpolated.

    Returns:
      [*stack, pairs] of words: "kept" (stretch 1), "blended" (above 1, below the factor), "interpolated" (the factor
      or more), "faster" (below 1), "removed" (no longer turns). Changes below 1e-6 count as none.

    Raises:
      ValueError: schedules of different widths, or a factor below 1.

    Example:
      >>> from rope_jax import YaRN, geometric_schedule
      >>> plain = geometric_schedule(8)
      >>> verdicts(YaRN(factor=4.0, original_length=2048)(plain), plain, 4.0).tolist()
      ['kept', 'kept', 'blended', 'interpolated']
    """
    ratio = stretch(schedule, plain)
    if factor is None:
        factor = float(np.max(ratio, where=np.isfinite(ratio), initial=1.0))
    if not factor >= 1:
        raise ValueError(f"`factor` must be at least 1; got {factor}. It is target length / trained length.")
    rules = (np.isinf(ratio), np.abs(ratio - 1) <= SAME, ratio < 1, ratio >= factor * (1 - SAME))
    return np.select(rules, ("removed", "kept", "faster", "interpolated"), "blended")

"""The spectrum of a group of layers at one length, beside the plain one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rope_jax.diagnostics import (
    VERDICTS,
    critical_dimension,
    effective_length,
    similarity_length,
    stretch,
    turns,
    unseen_phase,
    verdicts,
    wavelengths,
)
from rope_jax.experiment.inspect.reading import Group
from rope_jax.schedule import FrequencySchedule, geometric_schedule

# How far the score of similar keys is followed; beyond, the answer is "at least".
FARTHEST = 1 << 20


@dataclass(frozen=True, eq=False)
class Spectrum:
    """What every pair does at one length. Arrays are [pairs] float64, lengths tokens, turns and unseen in turns."""

    length: int
    trained_length: int
    attention_scale: float
    schedule: FrequencySchedule
    plain: FrequencySchedule
    wavelength: np.ndarray
    plain_wavelength: np.ndarray
    turns: np.ndarray
    stretch: np.ndarray
    verdict: np.ndarray
    unseen: np.ndarray
    effective_length: float
    critical_dimension: int

    @property
    def pairs(self) -> int:
        """How many pairs turn, or could."""
        return len(self.wavelength)

    @property
    def logit_scale(self) -> float:
        """What the logits of rotated channels are multiplied by: q and k both carry the scale."""
        return self.attention_scale**2

    @property
    def bands(self) -> dict[str, tuple[int, ...]]:
        """The pairs of each verdict, without those that no pair has."""
        found = {word: tuple(int(i) for i in np.flatnonzero(self.verdict == word)) for word in VERDICTS}
        return {word: pairs for word, pairs in found.items() if pairs}

    @property
    def never_turning(self) -> tuple[int, ...]:
        """Pairs that made less than one turn, as they were trained."""
        return tuple(int(i) for i in np.flatnonzero(self.trained_length / self.plain_wavelength < 1))

    def similarity_length(self) -> tuple[int, bool]:
        """How far similar keys are preferred to random ones, and whether that is as far as anyone looked."""
        farthest = min(FARTHEST, max(self.length, self.trained_length))
        found = similarity_length(self.schedule, farthest)
        return found, found == farthest


def spectrum_at(group: Group, length: int) -> Spectrum:
    """The spectrum of a group's schedule at a length.

    Raises:
      ValueError: a group that does not turn, or a length below 1.
    """
    if group.spec is None or not group.turns:
        raise ValueError(f"`group` must turn; got {group.name!r}, whose layers do not.")
    spec, trained = group.spec, group.trained.value
    plain = geometric_schedule(spec.rotary_dim, theta=spec.theta)
    schedule = spec.schedule(length)
    factor = group.factor
    if factor is not None and spec.needs_length and group.part("LongRoPE") is None:
        # A method that follows the length has done enough with a pair that it stretched as far as the length grew.
        factor = max(factor if group.part("DynamicYaRN") else 1.0, length / trained)
    return Spectrum(
        length,
        trained,
        # Seven digits are what the float32 scale holds.
        float(f"{float(schedule.attention_scale):.7g}"),
        schedule,
        plain,
        wavelengths(schedule),
        wavelengths(plain),
        turns(schedule, trained),
        stretch(schedule, plain),
        verdicts(schedule, plain, factor),
        unseen_phase(schedule, plain, trained, length),
        effective_length(schedule, plain, trained),
        critical_dimension(plain, trained),
    )


def most_changed(ratio: np.ndarray) -> tuple[int, ...]:
    """The pairs whose speed is changed most, by equal ratios.

    Example:
      >>> most_changed(np.array([1.0, 0.5, 0.25, 0.25]))
      (2, 3)
    """
    with np.errstate(divide="ignore"):
        change = np.abs(np.log(ratio))
    return tuple(int(i) for i in np.flatnonzero(np.isclose(change, change.max(), rtol=1e-6)))


def ranges(pairs: Sequence[int]) -> str:
    """Rising indices in short.

    Example:
      >>> ranges((0, 1, 2, 5))
      '0-2, 5'
    """
    found: list[list[int]] = []
    for pair in pairs:
        if found and pair == found[-1][-1] + 1:
            found[-1] = [found[-1][0], pair]
        else:
            found.append([pair])
    return ", ".join("-".join(map(str, ends)) for ends in found)


def tokens(value: float) -> str:
    """A length as a person reads it: 131,072, or any."""
    return "any" if math.isinf(value) else f"{value:,.0f}"


def number(value: float) -> str:
    """About four digits, short enough for a column.

    Example:
      >>> number(6.2832), number(51471.85), number(44270479.0), number(0.000123), number(math.inf)
      ('6.283', '51,472', '44.27M', '1.23e-4', 'inf')
    """
    if math.isinf(value):
        return "inf"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.4g}M" if abs(value) < 1e10 else f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

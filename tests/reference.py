"""The published formulas, written once more and on their own: float64 NumPy, or mpmath where float64 is too coarse.

Nothing here imports the package. Every function takes the inverse frequencies it edits (or the width and base that
define them) and a number system `m`: FLOAT64 for values, EXACT for angles at positions where float64 itself is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import mpmath
import numpy as np

mpmath.mp.dps = 40


class Numbers(NamedTuple):
    """The elementary functions of one number system, elementwise over NumPy arrays."""

    real: Any
    log: Any
    cos: Any
    sin: Any
    floor: Any
    ceil: Any
    nearest: Any
    sqrt: Any
    pi: Any


def _elementwise(function):
    return np.frompyfunc(function, 1, 1)


FLOAT64 = Numbers(
    lambda value: np.asarray(value, np.float64), np.log, np.cos, np.sin, np.floor, np.ceil, np.rint, np.sqrt, np.pi
)
EXACT = Numbers(
    _elementwise(mpmath.mpf),
    _elementwise(mpmath.log),
    _elementwise(mpmath.cos),
    _elementwise(mpmath.sin),
    _elementwise(mpmath.floor),
    _elementwise(mpmath.ceil),
    _elementwise(mpmath.nint),
    _elementwise(mpmath.sqrt),
    +mpmath.pi,
)


@dataclass(frozen=True)
class Setting:
    """Where a method is applied: width and base of the plain frequencies, factor, trained and present length."""

    rotary_dim: int = 16
    theta: Any = 10_000.0
    factor: Any = 4.0
    original_length: Any = 4096
    length: Any = 10_000

    @property
    def pairs(self) -> int:
        return self.rotary_dim // 2


def plain(rotary_dim, theta, m=FLOAT64):
    """omega_i = theta^(-2i/d)."""
    index = m.real(np.arange(rotary_dim // 2))
    return m.real(theta) ** (-2 * index / rotary_dim)


def interpolation(omega, factor, m=FLOAT64):
    """omega / s."""
    return omega / m.real(factor)


def ntk(rotary_dim, theta, factor, m=FLOAT64):
    """Plain frequencies at the base theta * s^(d/(d-2))."""
    exponent = m.real(rotary_dim) / (rotary_dim - 2)
    return plain(rotary_dim, m.real(theta) * m.real(factor) ** exponent, m)


def dynamic_ntk(rotary_dim, theta, factor, original_length, length, m=FLOAT64):
    """NTK at alpha = s l / L - (s - 1) for l > L, else 1."""
    factor, ratio = m.real(factor), m.real(length) / m.real(original_length)
    return ntk(rotary_dim, theta, factor * ratio - (factor - 1) if ratio > 1 else 1, m)


def by_turns(omega, factor, original_length, slow, fast, m=FLOAT64):
    """gamma omega + (1 - gamma) omega / s, gamma linear in the turns made within L: 0 at `slow`, 1 at `fast`."""
    turns = m.real(original_length) * omega / (2 * m.pi)
    gamma = np.clip((turns - m.real(slow)) / (m.real(fast) - m.real(slow)), m.real(0), m.real(1))
    return gamma * omega + (1 - gamma) * omega / m.real(factor)


def yarn_corners(rotary_dim, theta, original_length, beta_fast=32, beta_slow=1, truncate=True, m=FLOAT64):
    """The pair indices between which YaRN's ramp rises, after rounding and clamping."""

    def corner(turns):
        inside = m.real(original_length) / (2 * m.pi * m.real(turns))
        return rotary_dim * m.log(inside) / (2 * m.log(m.real(theta)))

    low, high = corner(beta_fast), corner(beta_slow)
    if truncate:
        low, high = m.floor(low), m.ceil(high)
    low, high = max(low, m.real(0)), min(high, m.real(rotary_dim - 1))
    return low, high + m.real(0.001) if low == high else high


def by_index(rotary_dim, theta, factor, original_length, beta_fast=32, beta_slow=1, truncate=True, m=FLOAT64):
    """(1 - kappa) omega + kappa omega / s with kappa linear in the pair index between the two corners."""
    low, high = yarn_corners(rotary_dim, theta, original_length, beta_fast, beta_slow, truncate, m)
    index = m.real(np.arange(rotary_dim // 2))
    kappa = np.clip((index - low) / (high - low), m.real(0), m.real(1))
    omega = plain(rotary_dim, theta, m)
    return (1 - kappa) * omega + kappa * omega / m.real(factor)


def _log(value):
    return mpmath.log(value) if isinstance(value, mpmath.mpf) else math.log(value)


def yarn_scale(factor, mscale=None, mscale_all_dim=None):
    """0.1 ln s + 1; with mscale the ratio of two such terms, an absent mscale_all_dim counting as 0."""

    def term(multiple):
        return 0.1 * multiple * _log(factor) + 1.0 if factor > 1 else 1.0

    if mscale is None and mscale_all_dim is None:
        return term(1.0)
    return term(1.0 if mscale is None else mscale) / term(0.0 if mscale_all_dim is None else mscale_all_dim)


def llama3(omega, factor, original_length, low_freq_factor=1, high_freq_factor=4, m=FLOAT64):
    """Three bands of wavelength: above L/low divided by s, below L/high kept, a blend of both between."""
    wavelength = 2 * m.pi / omega
    length, low, high = m.real(original_length), m.real(low_freq_factor), m.real(high_freq_factor)
    smooth = (length / wavelength - low) / (high - low)
    blend = (1 - smooth) * omega / m.real(factor) + smooth * omega
    return np.where(
        wavelength < length / high, omega, np.where(wavelength > length / low, omega / m.real(factor), blend)
    )


def longrope(omega, short_factors, long_factors, original_length, length, m=FLOAT64):
    """omega_i / lambda_i with the long list only beyond the trained length."""
    return omega / m.real(np.asarray(long_factors if length > original_length else short_factors))


def longrope_scale(factor, original_length):
    """sqrt(1 + ln s / ln L), 1 for s <= 1."""
    return (1.0 + _log(factor) / math.log(original_length)) ** 0.5 if factor > 1 else 1.0


def proportional(omega, rotary_dim, fraction, m=FLOAT64):
    """The first floor(r d / 2) frequencies, the rest zero."""
    return np.where(np.arange(rotary_dim // 2) < int(fraction * rotary_dim // 2), omega, m.real(0))


def clipped(omega, pairs, m=FLOAT64):
    """The slowest n pairs times (1 + cos(pi j / (n - 1))) / 2, j = 0 .. n - 1."""
    index = m.real(np.arange(pairs))
    window = (1 + m.cos(m.pi * index / (pairs - 1))) / 2
    return np.concatenate([omega[: len(omega) - pairs], omega[len(omega) - pairs :] * window])


def resonance(omega, m=FLOAT64):
    """Wavelengths rounded to whole tokens."""
    return 2 * m.pi / m.nearest(2 * m.pi / omega)


def cos_sin(omega, positions):
    """cos and sin of position * omega as float64, [positions, pairs]; omega holds mpmath numbers."""
    angle = np.multiply.outer(EXACT.real(np.asarray(positions, dtype=object)), omega)
    return EXACT.cos(angle).astype(np.float64), EXACT.sin(angle).astype(np.float64)


def rotate(x, omega, positions, layout="half", attention_scale=1.0):
    """Rotation of x [seq, heads, head_dim] in float64; channels past the rotated ones pass through."""
    x = np.asarray(x, np.float64)
    pairs = len(omega)
    first, second = pair_channels(pairs, layout)
    angle = np.multiply.outer(np.asarray(positions, np.float64), np.asarray(omega, np.float64))[:, None, :]
    cos, sin = np.cos(angle) * attention_scale, np.sin(angle) * attention_scale
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def pair_channels(pairs, layout):
    """Which two channels form pair i: (i, i + n) or (2i, 2i + 1)."""
    index = np.arange(pairs)
    return (index, index + pairs) if layout == "half" else (2 * index, 2 * index + 1)

"""The contract table: one line per method, and every law of the tests beside it is tested on every line.

A new method joins by adding its line: how to build it from a setting, and its published frequencies and scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import rope_jax as rj
from tests import reference as ref
from tests.reference import EXACT, FLOAT64, Setting

DEFAULT = Setting(rotary_dim=16, theta=10_000.0, factor=4.0, original_length=4096, length=10_000)


@dataclass(frozen=True)
class Line:
    """A method, its reference, and whether factor 1 must change nothing.

    `inv_freq(setting, m)` computes with the numbers of `m`: float64, or mpmath for exact angles (see `reference.py`).
    """

    name: str
    build: Callable[[Setting], Any]
    inv_freq: Callable[[Setting, Any], Any]
    scale: Callable[[Setting], float] = lambda s: 1.0
    has_factor: bool = True


def base(s: Setting, m: Any = FLOAT64) -> Any:
    """The frequencies every method starts from."""
    return ref.plain(s.rotary_dim, s.theta, m)


def stretch(s: Setting, strength: float = 1.0) -> Any:
    """Factors per pair rising from 1 towards `factor`, in steps that float32 holds exactly."""
    steps = [strength * (64 * pair // s.pairs) / 64 for pair in range(s.pairs)]
    if isinstance(s.factor, jax.Array):
        return 1 + (s.factor - 1) * jnp.asarray(steps, jnp.float32)
    return tuple(1 + (s.factor - 1) * step for step in steps)


def damped(s: Setting) -> int:
    """Five of 32 pairs, as published, but at least two."""
    return max(2, 5 * s.rotary_dim // 32)


def effective(s: Setting) -> Any:
    """The factor of dynamic YaRN."""
    return max(s.factor, s.length / s.original_length)


def exact_effective(s: Setting, m: Any) -> Any:
    return max(m.real(s.factor), m.real(s.length) / m.real(s.original_length))


CONTRACT = (
    Line("Identity", lambda s: rj.Identity(), base, has_factor=False),
    Line(
        "PositionInterpolation",
        lambda s: rj.PositionInterpolation(factor=s.factor),
        lambda s, m: ref.interpolation(base(s, m), s.factor, m),
    ),
    Line(
        "NTKAware",
        lambda s: rj.NTKAware(factor=s.factor),
        lambda s, m: ref.ntk(s.rotary_dim, s.theta, s.factor, m),
    ),
    Line(
        "BaseChange",
        lambda s: rj.BaseChange(theta=s.theta * s.factor),
        lambda s, m: ref.plain(s.rotary_dim, s.theta * s.factor, m),
    ),
    Line(
        "DynamicNTK",
        lambda s: rj.DynamicNTK(factor=s.factor, original_length=s.original_length),
        lambda s, m: ref.dynamic_ntk(s.rotary_dim, s.theta, s.factor, s.original_length, s.length, m),
    ),
    Line(
        "NTKByParts",
        lambda s: rj.NTKByParts(factor=s.factor, original_length=s.original_length),
        lambda s, m: ref.by_turns(base(s, m), s.factor, s.original_length, 1, 32, m),
    ),
    Line(
        "YaRN",
        lambda s: rj.YaRN(factor=s.factor, original_length=s.original_length),
        lambda s, m: ref.by_index(s.rotary_dim, s.theta, s.factor, s.original_length, m=m),
        lambda s: ref.yarn_scale(s.factor),
    ),
    Line(
        "YaRN(truncate=False)",
        lambda s: rj.YaRN(
            factor=s.factor, original_length=s.original_length, beta_fast=16, beta_slow=2, truncate=False
        ),
        lambda s, m: ref.by_index(s.rotary_dim, s.theta, s.factor, s.original_length, 16, 2, False, m),
        lambda s: ref.yarn_scale(s.factor),
    ),
    Line(
        "YaRN(ramp='turns')",
        lambda s: rj.YaRN(factor=s.factor, original_length=s.original_length, ramp="turns", mscale=0.707),
        lambda s, m: ref.by_turns(base(s, m), s.factor, s.original_length, 1, 32, m),
        lambda s: ref.yarn_scale(s.factor, 0.707),
    ),
    Line(
        "YaRN(mscale_all_dim=0.8)",
        lambda s: rj.YaRN(factor=s.factor, original_length=s.original_length, mscale=1.0, mscale_all_dim=0.8),
        lambda s, m: ref.by_index(s.rotary_dim, s.theta, s.factor, s.original_length, m=m),
        lambda s: ref.yarn_scale(s.factor, 1.0, 0.8),
    ),
    Line(
        "YaRN(attention_scale=1.5)",
        lambda s: rj.YaRN(factor=s.factor, original_length=s.original_length, attention_scale=1.5),
        lambda s, m: ref.by_index(s.rotary_dim, s.theta, s.factor, s.original_length, m=m),
        lambda s: 1.5,
        has_factor=False,  # the scale that was asked for stays
    ),
    Line(
        "DynamicYaRN",
        lambda s: rj.DynamicYaRN(factor=s.factor, original_length=s.original_length),
        lambda s, m: ref.by_index(s.rotary_dim, s.theta, exact_effective(s, m), s.original_length, m=m),
        lambda s: ref.yarn_scale(effective(s)),
    ),
    Line(
        "Llama3",
        lambda s: rj.Llama3(factor=s.factor, original_length=s.original_length),
        lambda s, m: ref.llama3(base(s, m), s.factor, s.original_length, m=m),
    ),
    Line(
        "LongRoPE",
        lambda s: rj.LongRoPE(
            short_factors=stretch(s, 1 / 8),
            long_factors=stretch(s),
            original_length=s.original_length,
            factor=s.factor,
        ),
        lambda s, m: ref.longrope(base(s, m), stretch(s, 1 / 8), stretch(s), s.original_length, s.length, m),
        lambda s: ref.longrope_scale(s.factor, s.original_length),
    ),
    Line(
        "ClippedRoPE",
        lambda s: rj.ClippedRoPE(pairs=damped(s)),
        lambda s, m: ref.clipped(base(s, m), damped(s), m),
        has_factor=False,
    ),
    Line(
        "Proportional",
        lambda s: rj.Proportional(fraction=0.5),
        lambda s, m: ref.proportional(base(s, m), s.rotary_dim, 0.5, m),
        has_factor=False,
    ),
    Line("Resonance", lambda s: rj.Resonance(), lambda s, m: ref.resonance(base(s, m), m), has_factor=False),
    Line(
        "Rescale",
        lambda s: rj.Rescale(factors=stretch(s)),
        lambda s, m: base(s, m) / m.real(stretch(s)),
    ),
    Line(
        "AttentionTemperature",
        lambda s: rj.AttentionTemperature(scale=s.factor),
        base,
        lambda s: s.factor,
    ),
    Line("Drop", lambda s: rj.Drop(), lambda s, m: 0 * base(s, m), has_factor=False),
    Line(
        "chain(NTKAware, Resonance, AttentionTemperature)",
        lambda s: rj.chain(rj.NTKAware(factor=s.factor), rj.Resonance(), rj.AttentionTemperature(scale=1.25)),
        lambda s, m: ref.resonance(ref.ntk(s.rotary_dim, s.theta, s.factor, m), m),
        lambda s: 1.25,
        has_factor=False,
    ),
)
NAMES = tuple(line.name for line in CONTRACT)


def schedule(line: Line, s: Setting = DEFAULT) -> Any:
    """What the package makes of a line."""
    return line.build(s)(rj.geometric_schedule(s.rotary_dim, theta=s.theta), length=s.length)


def stacked(s: Setting = DEFAULT) -> Any:
    """The schedules of all lines as one, [methods, pairs]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(schedule(line, s) for line in CONTRACT))


def exact_inv_freq(line: Line, s: Setting = DEFAULT) -> Any:
    """The reference frequencies as mpmath numbers."""
    return line.inv_freq(s, EXACT)

"""Derivatives with respect to a method's own factor, of first and second order, at large positions.

The reference differentiates the published formulas by central differences of mpmath numbers.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import mpmath
import numpy as np

import rope_jax as rj
from tests.reference import EXACT, Setting
from tests.scaling.contract import CONTRACT

SETTING = Setting(rotary_dim=8, theta=1e4, factor=4.0, original_length=512, length=3000)
LINES = tuple(line for line in CONTRACT if line.build(SETTING) != line.build(replace(SETTING, factor=5.0)))
POSITIONS = (3, 40_009)


def totals(factor):
    """One number per method: its table's cosines less twice its sines, summed."""
    start = rj.geometric_schedule(SETTING.rotary_dim)
    schedules = [line.build(replace(SETTING, factor=factor))(start, length=SETTING.length) for line in LINES]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *schedules)
    table = jax.vmap(rj.rotary_table, (0, None))(stacked, jnp.array(POSITIONS, jnp.int32))
    return jnp.sum(table.cos - 2.0 * table.sin, axis=(1, 2))


def exact_terms(line, factor):
    """The same numbers before summing, [positions, pairs], in mpmath."""
    setting = replace(SETTING, factor=factor)
    angle = np.multiply.outer(EXACT.real(np.array(POSITIONS, object)), line.inv_freq(setting, EXACT))
    return (EXACT.cos(angle) - 2 * EXACT.sin(angle)) * line.scale(setting)


def differences():
    """First and second central differences in the factor per method, and the size of their terms."""
    h, at = mpmath.mpf(10) ** -12, mpmath.mpf(SETTING.factor)
    for line in LINES:
        below, here, above = (exact_terms(line, at + step * h) for step in (-1, 0, 1))
        first, second = (above - below) / (2 * h), (above - 2 * here + below) / h**2
        yield [(float(terms.sum()), float(np.abs(terms).sum())) for terms in (first, second)]


def derivatives(factor):
    """First derivatives, forward and reverse, and the second (forward over reverse), of all methods in one program."""
    _, linear = jax.linearize(totals, factor)
    return linear(jnp.float32(1.0)), jax.jacrev(totals)(factor), jax.hessian(totals)(factor)


def test_the_table_of_methods_with_a_factor_is_not_empty():
    assert len(LINES) >= 12


def test_every_mode_equals_finite_differences():
    found = jax.jit(derivatives)(jnp.float32(SETTING.factor))
    for line, (first, second), forward, reverse, hessian in zip(LINES, differences(), *found, strict=True):
        for value in (forward, reverse):
            assert abs(float(value) - first[0]) <= 2e-5 * first[1] + 1e-5, line.name
        assert abs(float(hessian) - second[0]) <= 1e-4 * second[1] + 1e-4, line.name

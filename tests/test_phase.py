"""Angles are exact at every position, without x64, with the frequencies as data."""

from collections.abc import Iterator
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from tests import reference
from tests.reference import EXACT, Setting
from tests.scaling.contract import CONTRACT, DEFAULT, NAMES, exact_inv_freq, schedule
from tests.unchecked import unchecked

POSITIONS = (0, 1, 4095, 131_071, 1_000_003, 10_000_019, 2**31 - 1)
THETAS = (1e4, 5e5, 1e7)
EXACT_TABLE = jax.jit(rj.rotary_table)
FLOAT32_TABLE = jax.jit(lambda schedule, positions: rj.rotary_table(schedule, positions, phase="float32"))


@cache
def exact(theta: float, rotary_dim: int = 32):
    """Plain frequencies as mpmath numbers."""
    return reference.plain(rotary_dim, theta, EXACT)


def worst(table, cos, sin):
    errors = [np.abs(np.asarray(got, np.float64) - want).max() for got, want in ((table.cos, cos), (table.sin, sin))]
    return max(errors)


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("line", CONTRACT, ids=NAMES)
def test_every_method_is_exact_up_to_the_last_int32(line, theta):
    assert not jax.config.read("jax_enable_x64")
    setting = Setting(rotary_dim=32, theta=theta)
    positions = np.array(POSITIONS, np.int32)
    cos, sin = reference.cos_sin(exact_inv_freq(line, setting), positions)
    scale = line.scale(setting)
    table = EXACT_TABLE(schedule(line, setting), positions)
    assert table.cos.dtype == table.sin.dtype == np.float32
    assert worst(table, cos * scale, sin * scale) <= 1e-6 * scale


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=8, max_size=8), st.sampled_from(THETAS))
def test_any_position_is_exact_and_negative_ones_turn_the_other_way(positions, theta):
    start = rj.geometric_schedule(32, theta=theta)
    table = EXACT_TABLE(start, np.array(positions, np.int32))
    assert worst(table, *reference.cos_sin(exact(theta), positions)) <= 1e-6
    mirrored = EXACT_TABLE(start, -np.array(positions, np.int32))
    np.testing.assert_array_equal(mirrored.cos, table.cos)
    np.testing.assert_array_equal(mirrored.sin, -table.sin)


@pytest.mark.parametrize("rotary_dim", [2, 8, 256])
def test_every_width_is_exact(rotary_dim):
    positions = np.array(POSITIONS, np.int32)
    table = EXACT_TABLE(rj.geometric_schedule(rotary_dim, theta=5e5), positions)
    assert worst(table, *reference.cos_sin(exact(5e5, rotary_dim), positions)) <= 1e-6


def test_frequencies_above_one_turn_exactly():
    """Resonance makes 2 pi / 6 of the first pair; a schedule may hold any frequency."""
    omega = np.array([3.0, 2 * np.pi / 6, 7.5, 0.0])
    schedule = rj.FrequencySchedule.of(omega)
    positions = np.array(POSITIONS, np.int32)
    table = EXACT_TABLE(schedule, positions)
    # 7.5 rad x 2^31 is beyond float64's own half ulp of a frequency, so the float64 value itself is the truth here.
    assert worst(table, *reference.cos_sin(EXACT.real(omega), positions)) <= 1e-6


def test_the_residual_carries_what_float32_cannot():
    """With the residual dropped, the schedule is still right to float32: 1e-3 at 4095 and useless at ten million."""
    start = rj.geometric_schedule(32)
    rounded = start.replace(inv_freq=start.inv_freq)
    near, far = np.array([4095]), np.array([10_000_019])
    cos_near, _ = reference.cos_sin(exact(1e4), near)
    cos_far, _ = reference.cos_sin(exact(1e4), far)
    np.testing.assert_array_equal(rounded.residual, 0)
    assert np.abs(EXACT_TABLE(rounded, near).cos - cos_near).max() < 1e-3
    assert np.abs(EXACT_TABLE(rounded, far).cos - cos_far).max() > 0.05


def test_a_shift_of_ten_million_changes_no_score():
    rng = np.random.default_rng(0)
    start = rj.geometric_schedule(32, theta=5e5)
    q, k = (jnp.asarray(rng.standard_normal((1, 64, 1, 32)), jnp.float32) for _ in range(2))
    q_positions = rng.integers(0, 100_000, (1, 64), dtype=np.int32)
    k_positions = rng.integers(0, 100_000, (1, 64), dtype=np.int32)
    norms = np.linalg.norm(q, axis=-1) * np.linalg.norm(k, axis=-1)

    @jax.jit
    def score(shift):
        tables = [rj.rotary_table(start, positions + shift) for positions in (q_positions, k_positions)]
        return jnp.sum(rj.rotate(q, tables[0]) * rj.rotate(k, tables[1]), axis=-1)

    here, there = score(jnp.int32(0)), score(jnp.int32(10_000_000))
    assert np.max(np.abs(here - there) / norms) <= 5e-6


def test_float32_phase_is_the_rounded_product():
    start = schedule(CONTRACT[NAMES.index("YaRN")])
    positions = np.array([0, 1, 4095, 131_071, 16_777_217], np.int32)
    angle = positions.astype(np.float32)[:, None] * np.asarray(start.inv_freq)[None, :]
    expected = np.cos(angle.astype(np.float64)), np.sin(angle.astype(np.float64))
    scale = np.float64(start.attention_scale)
    assert worst(FLOAT32_TABLE(start, positions), expected[0] * scale, expected[1] * scale) <= 3e-7
    assert worst(EXACT_TABLE(start, positions), expected[0] * scale, expected[1] * scale) > 1e-3


def test_phase_names_are_checked():
    with unchecked(), pytest.raises(ValueError, match=r"`phase` must be .*float16"):
        rj.rotary_table(rj.geometric_schedule(8), np.arange(3), phase="float16")  # type: ignore[arg-type]


def equations(jaxpr) -> Iterator:
    """Every equation of a jaxpr and of the jaxprs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns"):
                yield from equations(inner)
            elif hasattr(inner, "jaxpr"):
                yield from equations(inner.jaxpr)


def primitives(function, *arguments) -> set[str]:
    return {equation.primitive.name for equation in equations(jax.make_jaxpr(function)(*arguments).jaxpr)}


@pytest.mark.parametrize("phase", ["exact", "float32"])
def test_no_contraction_between_positions_and_angles(phase):
    start = rj.geometric_schedule(16)

    def through_jit(schedule, positions):
        return jax.jit(lambda s, p: rj.rotary_table(s, p, phase=phase))(schedule, positions)

    found = primitives(through_jit, start, jnp.arange(6, dtype=jnp.int32).reshape(2, 3))
    assert {"cos", "sin", "mul"} <= found
    assert not found & {"dot_general", "conv_general_dilated", "custom_vjp_call"}
    assert "dot_general" in primitives(jax.jit(jnp.matmul), jnp.ones((2, 2)), jnp.ones((2, 2)))


def test_a_long_program_holds_no_table():
    """The program for positions up to 131071 stays small: nothing is looked up, nothing is baked in."""
    lowered = EXACT_TABLE.lower(rj.geometric_schedule(128), jnp.arange(131_072, dtype=jnp.int32))
    assert len(lowered.as_text()) < 200_000


def test_many_tables_are_one_function():
    """Tables of one shape repeat a call in the program, not the integer arithmetic behind it."""

    def size(count):
        tables = jax.jit(lambda s, p: [rj.rotary_table(s, p + shift).cos for shift in range(count)])
        return len(tables.lower(rj.geometric_schedule(16), jnp.arange(6, dtype=jnp.int32)).as_text())

    assert size(8) < 1.5 * size(1)


@pytest.mark.parametrize("phase", ["exact", "float32"])
def test_first_derivatives_are_the_analytic_ones(phase):
    """d cos / d omega = -p sin, d sin / d omega = p cos, and both are linear in the scale; at large positions too."""
    start = schedule(CONTRACT[NAMES.index("YaRN")], DEFAULT)
    positions = jnp.array([0, 1, 131_071, 1_000_003], jnp.int32)

    @jax.jit
    def push(schedule, tangent):
        return jax.jvp(lambda s: rj.rotary_table(s, positions, phase=phase), (schedule,), (tangent,))

    still = jax.tree.map(jnp.zeros_like, start)
    table, turn = push(start, still.replace(inv_freq=jnp.ones_like(start.inv_freq)))
    p = np.asarray(positions, np.float64)[:, None]
    np.testing.assert_allclose(turn.cos, -p * np.asarray(table.sin, np.float64), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(turn.sin, p * np.asarray(table.cos, np.float64), rtol=1e-6, atol=1e-6)
    _, growth = push(start, still.replace(attention_scale=jnp.float32(1.0)))
    np.testing.assert_allclose(growth.cos * start.attention_scale, table.cos, rtol=1e-6, atol=1e-6)


def test_residuals_are_digits_not_parameters():
    """Only inv_freq has a derivative, so an optimizer's step on all leaves moves each frequency once."""
    start = rj.geometric_schedule(8)
    positions = jnp.array([3, 100_003], jnp.int32)

    def total(schedule):
        table = rj.rotary_table(schedule, positions)
        return jnp.sum(table.cos + 2.0 * table.sin)

    for transform in (rj.Identity(), rj.PositionInterpolation(factor=4.0), rj.NTKAware(factor=4.0)):
        gradient = jax.jit(jax.grad(lambda schedule, transform=transform: total(transform(schedule))))(start)
        assert np.all(np.abs(np.asarray(gradient.inv_freq)[1:]) > 1.0)
        np.testing.assert_array_equal(gradient.residual, 0, err_msg=str(transform))

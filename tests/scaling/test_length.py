"""Methods that depend on the length: pure functions of a length that may be traced, per row, or per segment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests import reference
from tests.scaling.contract import CONTRACT, DEFAULT

LENGTHS = (15, 16, 17, 32)
ONES, LONG = (1.0,) * 4, (1.0, 2.0, 4.0, 8.0)
METHODS = {
    "DynamicNTK": rj.DynamicNTK(factor=2.0, original_length=16),
    "LongRoPE": rj.LongRoPE(short_factors=ONES, long_factors=LONG, original_length=16, factor=4.0),
    "DynamicYaRN": rj.DynamicYaRN(original_length=16),
    "DynamicYaRN(factor=1.5)": rj.DynamicYaRN(original_length=16, factor=1.5, ramp="turns", beta_fast=2.0),
    "chain": rj.chain(rj.DynamicNTK(factor=2.0, original_length=16), rj.Resonance()),
}
SPECS = {name: rj.RopeSpec(8, transform=method) for name, method in METHODS.items()}
every_method = pytest.mark.parametrize("name", METHODS)


def same(traced, host):
    np.testing.assert_allclose(traced.float64(), host.float64(), rtol=2e-15)
    np.testing.assert_allclose(traced.attention_scale, host.attention_scale, rtol=1e-7)


@pytest.fixture(scope="module")
def program():
    """All methods from positions in one program, and how often it was traced."""
    traces = []

    @jax.jit
    def schedules(positions):
        traces.append(positions.shape)
        length = rj.lengths(positions)[0]
        return {name: spec.schedule(length) for name, spec in SPECS.items()}

    return schedules, traces


def padded(length, seq=32):
    return rj.padded_positions(jnp.arange(seq)[None] < length)


def test_one_compilation_serves_every_length(program):
    """Seventeen tokens in an array of 32 are 17 long."""
    schedules, traces = program
    for length in LENGTHS:
        for name, traced in schedules(padded(length)).items():
            same(traced, SPECS[name].schedule(length))
    assert len(traces) == 1


def test_python_numpy_and_jax_lengths_agree():
    for spec in SPECS.values():
        for length in (np.int64(17), np.int32(17), jnp.int32(17), 17.0):
            same(spec.schedule(length), spec.schedule(17))


def test_short_long_short(program):
    """No memory of the long one; up to the trained length nothing is scaled."""
    schedules, _ = program
    before, long, after = (schedules(padded(length)) for length in (8, 32, 8))
    for name in METHODS:
        for leaf, again in zip(jax.tree.leaves(before[name]), jax.tree.leaves(after[name]), strict=True):
            np.testing.assert_array_equal(leaf, again)
        assert np.abs(long[name].float64() - before[name].float64()).max() > 1e-4
    for name in ("DynamicNTK", "LongRoPE", "DynamicYaRN"):
        np.testing.assert_allclose(before[name].float64(), reference.plain(8, 1e4), rtol=1e-15)


def test_the_switch_is_above_the_trained_length():
    spec = SPECS["LongRoPE"]
    plain = reference.plain(8, 1e4)
    for length, expected in ((15, plain), (16, plain), (17, plain / LONG), (32, plain / LONG)):
        np.testing.assert_allclose(spec.schedule(length).float64(), expected, rtol=1e-15)
        np.testing.assert_allclose(spec.schedule(length).attention_scale, np.sqrt(1.5), rtol=1e-7)


def test_dynamic_yarn_follows_the_length_from_its_factor_on():
    method = rj.DynamicYaRN(original_length=4096, factor=2.0)
    for length, factor in ((100, 2.0), (8192, 2.0), (12_288, 3.0), (40_960, 10.0)):
        got = method(rj.geometric_schedule(64), length=length)
        np.testing.assert_allclose(got.float64(), reference.by_index(64, 1e4, factor, 4096), rtol=1e-13)
        np.testing.assert_allclose(got.attention_scale, reference.yarn_scale(factor), rtol=1e-7)


@every_method
def test_a_length_per_row(name):
    """Rows of 8 and 32 tokens: each has its own schedule, in any order."""
    spec = SPECS[name]
    by_row = spec.schedule(jnp.array([8, 32], jnp.int32))
    assert (by_row.stack, by_row.pairs) == ((2, 1), 4)
    for row, length in enumerate((8, 32)):
        same(jax.tree.map(lambda leaf, row=row: leaf[row, 0], by_row), spec.schedule(length))
    swapped = spec.schedule(jnp.array([32, 8], jnp.int32))
    same(jax.tree.map(lambda leaf: leaf[::-1], swapped), by_row)


@every_method
def test_a_length_per_segment(name):
    spec = SPECS[name]
    segments = jnp.array([[1, 1, 2, 2, 2, 0]])
    positions = jnp.array([[0, 7, 0, 1, 31, 0]])
    by_token = jax.jit(lambda p, s: spec.schedule(rj.lengths(p, s)))(positions, segments)
    assert by_token.stack == (1, 6)
    for token, length in enumerate((8, 8, 32, 32, 32)):
        same(jax.tree.map(lambda leaf, token=token: leaf[0, token], by_token), spec.schedule(length))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(by_token))


def test_rows_do_not_touch_each_other():
    """A row's rotation is the one it has alone."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, 32, 1, 8)), jnp.float32)
    positions = jnp.concatenate([padded(8), padded(32)])

    @jax.jit
    def rotated(x, positions):
        schedules = [spec.schedule(rj.lengths(positions)) for spec in SPECS.values()]
        return [rj.rotate(x, rj.rotary_table(schedule, positions)) for schedule in schedules]

    both = rotated(x, positions)
    for row in range(2):
        for together, alone in zip(both, rotated(x[row : row + 1], positions[row : row + 1]), strict=True):
            np.testing.assert_allclose(together[row], alone[0], rtol=0, atol=1e-6)


def test_a_static_method_answers_in_the_shape_of_the_length():
    spec = rj.RopeSpec(8, transform=rj.YaRN(factor=4.0, original_length=16))
    assert spec.schedule(jnp.array([8, 32])).stack == (2, 1)
    assert spec.schedule(jnp.ones((2, 6), jnp.int32)).stack == (2, 6)
    same(jax.tree.map(lambda leaf: leaf[1, 0], spec.schedule(jnp.array([8, 32]))), spec.schedule())


@pytest.mark.parametrize(
    "line", [line for line in CONTRACT if not line.build(DEFAULT).needs_length], ids=lambda x: x.name
)
def test_a_static_method_acts_at_every_length_below_the_original_too(line):
    spec = rj.RopeSpec(DEFAULT.rotary_dim, transform=line.build(DEFAULT))
    whole = spec.schedule()
    for length in (1, DEFAULT.original_length // 2, DEFAULT.original_length, 4 * DEFAULT.original_length):
        same(spec.schedule(length), whole)
        same(jax.tree.map(lambda leaf: leaf[0, 0], spec.schedule(np.array([length]))), whole)


def weighted(length, temperature):
    """A number that depends on two dynamic schedules at a length, and on a scale to differentiate by."""
    positions = jnp.arange(3, dtype=jnp.int32) + 40
    total = jnp.float32(0.0)
    for name in ("DynamicNTK", "LongRoPE"):
        schedule = SPECS[name].schedule(length)
        table = rj.rotary_table(schedule.replace(attention_scale=schedule.attention_scale * temperature), positions)
        total = total + jnp.sum(table.cos - 2.0 * table.sin)
    return total


def test_vmap_scan_grad_and_remat_over_traced_lengths():
    steps = jnp.array(LENGTHS, jnp.int32)
    expected = np.array([float(weighted(length, 1.0)) for length in LENGTHS])
    value = jax.value_and_grad(weighted, argnums=1)

    @jax.jit
    def all_ways(steps, temperature):
        mapped = jax.vmap(value, (0, None))(steps, temperature)
        checkpointed = jax.value_and_grad(jax.checkpoint(weighted), argnums=1)
        _, remat = jax.lax.scan(lambda carry, length: (carry, checkpointed(length, temperature)), 0, steps)
        return mapped, remat

    for values, gradients in all_ways(steps, jnp.float32(1.0)):
        np.testing.assert_allclose(values, expected, rtol=0, atol=3e-5)
        np.testing.assert_allclose(gradients, expected, rtol=0, atol=3e-5)


@every_method
def test_a_missing_length_raises(name):
    with pytest.raises(ValueError, match=r"`length` must be given.*got None.*lengths"):
        SPECS[name].schedule()
    assert SPECS[name].needs_length


@pytest.mark.parametrize("length", [0, -1, np.nan, True, "32"])
def test_lengths_that_are_no_number_of_tokens_raise(length):
    for spec in SPECS.values():
        with pytest.raises((ValueError, TypeError), match=rf"`length` must be .*got {length!r}"):
            spec.schedule(length)

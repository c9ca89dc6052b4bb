"""The laws that every method obeys, over every line of the contract table."""

import copy
import dataclasses
import pickle
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests import reference
from tests.scaling.contract import CONTRACT, DEFAULT, NAMES, schedule, stacked

LAYOUTS = ("half", "interleaved")
POSITIONS = jnp.asarray(np.random.default_rng(0).integers(0, 3_000_000, (2, 5)), jnp.int32)
X = jnp.asarray(np.random.default_rng(1).standard_normal((2, 5, 2, 20)), jnp.float32)  # 16 rotary channels of 20
every_line = pytest.mark.parametrize("line", CONTRACT, ids=NAMES)


def turned(schedule, x, positions, layout):
    table = rj.rotary_table(schedule, positions)
    rotated = rj.rotate(x, table, layout=layout)
    return rotated, rj.unrotate(rotated, table, layout=layout)


TURNED = jax.jit(turned, static_argnames="layout")
ALL_TURNED = jax.jit(jax.vmap(turned, (0, None, None, None)), static_argnames="layout")


def same_frequencies(one, other, rtol=2e-15):
    np.testing.assert_allclose(one.float64(), other.float64(), rtol=rtol)
    np.testing.assert_allclose(one.attention_scale, other.attention_scale, rtol=1e-7)


def test_every_method_has_a_line():
    built = {type(line.build(DEFAULT)).__name__ for line in CONTRACT}
    assert built >= set(rj.scaling.METHODS)
    assert all(getattr(rj, name) is method for name, method in rj.scaling.METHODS.items())


class TestAsValues:
    @every_line
    def test_equal_settings_compare_and_hash_alike(self, line):
        method, again = line.build(DEFAULT), line.build(DEFAULT)
        assert method == again
        assert hash(method) == hash(again)
        assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == method
        if line.has_factor:
            assert method != line.build(replace(DEFAULT, factor=8.0))

    @every_line
    def test_fields_make_the_same_method_again(self, line):
        method = line.build(DEFAULT)
        fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
        assert type(method)(**fields) == method
        spec = rj.RopeSpec(DEFAULT.rotary_dim, head_dim=2 * DEFAULT.rotary_dim, transform=method)
        assert dataclasses.replace(dataclasses.replace(spec)) == spec == pickle.loads(pickle.dumps(spec))
        if not line.name.startswith("chain"):
            assert type(method)(**dataclasses.asdict(method)) == method
        with pytest.raises(dataclasses.FrozenInstanceError):
            method.needs_length = True

    def test_lists_and_numpy_numbers_become_plain_values(self):
        lists = rj.Rescale(factors=[1.0, 2.0])
        assert lists == rj.Rescale(factors=(1.0, 2.0))
        assert hash(lists) == hash(rj.Rescale(factors=(1.0, 2.0)))
        number = rj.PositionInterpolation(factor=np.float64(4.0))
        assert number == rj.PositionInterpolation(factor=4.0)
        assert hash(number) == hash(rj.PositionInterpolation(factor=4.0))


class TestIdentities:
    @every_line
    def test_a_factor_of_one_changes_nothing(self, line):
        for length in (1, DEFAULT.original_length):
            setting = replace(DEFAULT, factor=1.0, length=length)
            if line.has_factor:
                same_frequencies(schedule(line, setting), rj.geometric_schedule(DEFAULT.rotary_dim), rtol=5e-16)
                assert schedule(line, setting).attention_scale == 1.0

    @every_line
    def test_chain_is_associative_and_identity_its_unit(self, line):
        start, length = rj.geometric_schedule(DEFAULT.rotary_dim), DEFAULT.length
        f, g, h = rj.AttentionTemperature(scale=1.5), line.build(DEFAULT), rj.PositionInterpolation(factor=2.0)
        left, right = rj.chain(rj.chain(f, g), h), rj.chain(f, rj.chain(g, h))
        assert left == right
        assert rj.chain(rj.Identity(), g) == rj.chain(g, rj.chain()) == g
        one_by_one = h(g(f(start), length=length), length=length)
        same_frequencies(left(start, length=length), one_by_one)
        np.testing.assert_allclose(left(start, length=length).float64(), g(start, length=length).float64() / 2)

    @pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
    def test_llama3_is_ntk_by_parts_from_one_to_four_turns(self, factor):
        start = rj.geometric_schedule(64, theta=5e5)
        by_parts = rj.NTKByParts(factor=factor, original_length=8192, alpha=1, beta=4)
        same_frequencies(rj.Llama3(factor=factor, original_length=8192)(start), by_parts(start))

    def test_yarn_by_turns_without_temperature_is_ntk_by_parts(self):
        start = rj.geometric_schedule(64)
        yarn = rj.YaRN(factor=4.0, original_length=4096, ramp="turns", attention_scale=1.0)
        same_frequencies(yarn(start), rj.NTKByParts(factor=4.0, original_length=4096)(start))

    def test_yarn_is_its_frequencies_and_a_temperature(self):
        start = rj.geometric_schedule(64)
        bare = rj.YaRN(factor=4.0, original_length=4096, attention_scale=1.0)
        tempered = rj.chain(bare, rj.AttentionTemperature(scale=reference.yarn_scale(4.0)))
        same_frequencies(tempered(start), rj.YaRN(factor=4.0, original_length=4096)(start))

    def test_interpolations_multiply_and_base_changes_replace(self):
        start = rj.geometric_schedule(16)
        twice = rj.chain(rj.PositionInterpolation(factor=2.0), rj.PositionInterpolation(factor=4.0))
        same_frequencies(twice(start), rj.PositionInterpolation(factor=8.0)(start))
        same_frequencies(
            rj.chain(rj.NTKAware(factor=2.0), rj.NTKAware(factor=4.0))(start), rj.NTKAware(factor=8.0)(start)
        )
        rebased = rj.chain(rj.BaseChange(theta=1e6), rj.BaseChange(theta=5e5))
        same_frequencies(rebased(start), rj.geometric_schedule(16, theta=5e5))

    def test_dynamic_ntk_is_ntk_at_its_alpha_and_ends_where_interpolation_does(self):
        start = rj.geometric_schedule(16)
        dynamic = rj.DynamicNTK(factor=2.0, original_length=4096)(start, length=3 * 4096)
        same_frequencies(dynamic, rj.NTKAware(factor=5.0)(start))
        np.testing.assert_allclose(dynamic.float64()[[0, -1]], start.float64()[[0, -1]] / [1, 5], rtol=1e-14)

    def test_resonance_is_a_projection_and_keeps_a_still_pair_still(self):
        start = rj.geometric_schedule(16)
        once = rj.Resonance()(start)
        same_frequencies(rj.Resonance()(once), once)
        np.testing.assert_array_equal(rj.chain(rj.Proportional(fraction=0.5), rj.Resonance())(start).float64()[4:], 0)


class TestRotations:
    """One compiled rotation serves every method: schedules are data."""

    @pytest.mark.parametrize("x64", [False, True])
    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_dtype_pass_through_and_inverse(self, layout, dtype, x64):
        with jax.enable_x64(x64):
            x = X.astype(dtype)
            rotated, back = ALL_TURNED(stacked(), x, POSITIONS, layout)
        assert rotated.dtype == back.dtype == dtype
        bits = np.uint16 if dtype == jnp.bfloat16 else np.uint32
        for name, out, again in zip(NAMES, np.asarray(rotated), np.asarray(back), strict=True):
            np.testing.assert_array_equal(out[..., 16:].view(bits), np.asarray(x)[..., 16:].view(bits), err_msg=name)
            tolerance = 2e-6 if dtype == jnp.float32 else 2**-7
            error = np.abs(again.astype(np.float32) - np.asarray(x, np.float32)).max()
            assert error <= tolerance * np.abs(np.asarray(x, np.float32)).max(), name

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_one_program_serves_all_and_equals_eager_and_the_vmapped_one(self, layout):
        programs = TURNED._cache_size()  # type: ignore[attr-defined]
        together, _ = ALL_TURNED(stacked(), X, POSITIONS, layout)
        for line, vmapped in zip(CONTRACT, together, strict=True):
            start = schedule(line)
            scale = float(start.attention_scale)
            jitted, _ = TURNED(start, X, POSITIONS, layout)
            np.testing.assert_allclose(vmapped, jitted, rtol=0, atol=2e-6 * scale, err_msg=line.name)
            if layout == "half":
                eager, _ = turned(start, X, POSITIONS, layout)
                np.testing.assert_allclose(eager, jitted, rtol=0, atol=2e-6 * scale, err_msg=line.name)
        assert TURNED._cache_size() == programs + 1  # type: ignore[attr-defined]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_values(self, layout):
        together, _ = ALL_TURNED(stacked(), X, POSITIONS, layout)
        for line, got in zip(CONTRACT, together, strict=True):
            start = schedule(line)
            scale = float(start.attention_scale)
            for row in range(2):
                want = reference.rotate(X[row], start.float64(), POSITIONS[row], layout, scale)
                np.testing.assert_allclose(got[row], want, rtol=0, atol=1e-5 * scale, err_msg=line.name)

    def test_layers_with_their_own_schedules(self):
        """A scan over stacked schedules equals a loop over layers."""

        @jax.jit
        def layers(x, schedules):
            return jax.lax.scan(lambda x, s: (x + TURNED(s, x, POSITIONS, "half")[0], None), x, schedules)[0]

        looped = X
        for line in CONTRACT:
            looped = looped + TURNED(schedule(line), looped, POSITIONS, "half")[0]
        np.testing.assert_allclose(layers(X, stacked()), looped, rtol=1e-4, atol=1e-4 * np.abs(looped).max())

    def test_heads_with_their_own_schedules(self):
        """A table per kv head equals a loop over heads; each serves its group of query heads."""
        q = jnp.asarray(np.random.default_rng(2).standard_normal((2, 5, 2 * len(CONTRACT), 20)), jnp.float32)

        @jax.jit
        def by_head(q, schedules):
            table = jax.vmap(rj.rotary_table, (0, None), out_axes=-2)(schedules, POSITIONS)
            return rj.rotate(q, table)

        rotated = by_head(q, stacked())
        for head, line in enumerate(CONTRACT):
            group = slice(2 * head, 2 * head + 2)
            alone, _ = TURNED(schedule(line), q[:, :, group], POSITIONS, "half")
            np.testing.assert_allclose(rotated[:, :, group], alone, rtol=0, atol=1e-5, err_msg=line.name)


@partial(jax.jit, static_argnames="remat")
def scanned_gradient(inv_freq, schedules, remat):
    """d/d inv_freq of a number read off every layer's table, layers under a scan, with or without remat."""

    def layer(total, schedule):
        table = rj.rotary_table(schedule, POSITIONS)
        return total + jnp.sum(table.cos - 2.0 * table.sin), None

    def total(inv_freq):
        layers = schedules.replace(inv_freq=inv_freq, residual=schedules.residual)
        return jax.lax.scan(jax.checkpoint(layer) if remat else layer, jnp.float32(0.0), layers)[0]

    return jax.grad(total)(inv_freq)


@pytest.mark.parametrize("remat", [False, True])
def test_gradients_of_frequencies_are_finite_differences(remat):
    """At positions of millions, for all methods as the layers of one scan, against float64 central differences."""
    schedules = stacked()
    gradient = scanned_gradient(schedules.inv_freq, schedules, remat)
    omega, scale = schedules.float64(), np.asarray(schedules.attention_scale, np.float64)[:, None]
    p = np.asarray(POSITIONS, np.float64).reshape(-1, 1, 1)
    h = 1e-11

    def read(omega):
        return (np.cos(p * omega) - 2 * np.sin(p * omega)) * scale

    difference = ((read(omega + h) - read(omega - h)) / (2 * h)).sum(0)
    assert np.all(np.abs(gradient - difference) <= 2e-5 * (3 * scale * p.sum()))
    assert np.median(np.abs(gradient)) > 1e5

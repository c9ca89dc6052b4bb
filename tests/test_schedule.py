"""Schedules, specs and models of specs: what they hold, what they refuse."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from tests import reference
from tests.unchecked import unchecked


class TestFrequencySchedule:
    @pytest.mark.parametrize("x64", [False, True])
    def test_leaves_are_float32_with_the_full_stack(self, x64):
        with jax.enable_x64(x64):
            schedule = rj.YaRN(factor=4.0, original_length=64)(rj.geometric_schedule(16))
            shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(schedule)]
        assert shapes == [((8,), jnp.float32), ((8, 2), jnp.float32), ((), jnp.float32)]
        assert (schedule.pairs, schedule.stack) == (8, ())

    def test_stacking_gives_every_leaf_the_stack(self):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[rj.geometric_schedule(8)] * 3)
        assert (stacked.pairs, stacked.stack) == (4, (3,))
        assert (stacked.residual.shape, stacked.attention_scale.shape) == ((3, 4, 2), (3,))

    @settings(deadline=None, max_examples=50)
    @given(st.lists(st.floats(1e-12, 100.0), min_size=1, max_size=6))
    def test_three_planes_hold_a_float64_exactly(self, omega):
        schedule = rj.FrequencySchedule.of(np.array(omega))
        np.testing.assert_array_equal(schedule.float64(), omega)
        np.testing.assert_array_equal(np.asarray(schedule.inv_freq), np.float32(omega))

    def test_it_is_a_pytree_that_goes_through_jit_scan_and_an_update(self):
        schedule = rj.geometric_schedule(8)
        there = jax.jit(lambda s: s)(schedule)
        assert isinstance(there, rj.FrequencySchedule)
        np.testing.assert_array_equal(there.float64(), schedule.float64())
        stacked = jax.tree.map(lambda leaf: leaf[None], schedule)
        _, out = jax.lax.scan(lambda carry, s: (carry, s), 0, stacked)
        assert out.stack == (1,)
        moved = jax.tree.map(lambda leaf: leaf + 1, schedule)
        np.testing.assert_allclose(moved.inv_freq, schedule.inv_freq + 1)

    def test_replacing_the_frequency_alone_drops_its_residual(self):
        start = rj.geometric_schedule(8)
        assert np.any(np.asarray(start.residual) != 0)
        replaced = start.replace(inv_freq=2 * start.inv_freq)
        np.testing.assert_array_equal(replaced.residual, 0)
        np.testing.assert_array_equal(replaced.float64(), 2 * np.asarray(start.inv_freq, np.float64))
        scaled = start.replace(attention_scale=jnp.float32(2.0))
        np.testing.assert_array_equal(scaled.float64(), start.float64())
        with pytest.raises(TypeError, match=r"inv_frequency"):
            start.replace(inv_frequency=start.inv_freq)

    def test_it_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            rj.geometric_schedule(8).inv_freq = jnp.zeros(4)  # type: ignore[misc]


class TestGeometricSchedule:
    @pytest.mark.parametrize("rotary_dim", [2, 8, 64, 128, 256])
    @pytest.mark.parametrize("theta", [100.0, 10_000, 5e5, 1e7, 2.0**40])
    def test_values(self, rotary_dim, theta):
        schedule = rj.geometric_schedule(rotary_dim, theta=theta)
        np.testing.assert_allclose(schedule.float64(), reference.plain(rotary_dim, theta), rtol=1e-15)
        assert schedule.attention_scale == 1.0

    @pytest.mark.parametrize("rotary_dim", [65, 3, 33, 1, 0, -2])
    def test_widths_that_are_not_whole_pairs_raise(self, rotary_dim):
        for build in (rj.geometric_schedule, rj.RopeSpec):
            with pytest.raises(ValueError, match=rf"`rotary_dim` must .*got {rotary_dim}\."):
                build(rotary_dim)

    @pytest.mark.parametrize("rotary_dim", [True, 8.0, "8", None, 0.29 * 100])
    def test_widths_that_are_not_integers_raise(self, rotary_dim):
        for build in (rj.geometric_schedule, rj.RopeSpec):
            with unchecked(), pytest.raises(TypeError, match=rf"`rotary_dim` must be an integer; got {rotary_dim!r}"):
                build(rotary_dim)

    @pytest.mark.parametrize("theta", [0.0, -1.0, math.nan, math.inf, True, 1.0])
    def test_bases_that_make_no_spectrum_raise(self, theta):
        for build in (rj.geometric_schedule, rj.RopeSpec):
            with unchecked(), pytest.raises((ValueError, TypeError), match=rf"`theta` must .*got {theta!r}"):
                build(8, theta=theta)

    @pytest.mark.parametrize("theta", ["10000", None])
    def test_bases_that_are_not_numbers_raise(self, theta):
        for build in (rj.geometric_schedule, rj.RopeSpec):
            with unchecked(), pytest.raises(TypeError, match=rf"`theta` must .*got {theta!r}"):
                build(8, theta=theta)

    def test_a_traced_base_keeps_float64(self):
        traced = jax.jit(lambda theta: rj.geometric_schedule(32, theta=theta))(jnp.float32(5e5))
        np.testing.assert_allclose(traced.float64(), reference.plain(32, 5e5), rtol=2e-15)


class TestRotaryWidth:
    """A fraction of the head must give whole pairs: nothing is truncated."""

    @pytest.mark.parametrize(("head_dim", "fraction", "width"), [(128, 0.75, 96), (128, 0.5, 64), (80, 0.4, 32)])
    def test_values(self, head_dim, fraction, width):
        assert rj.rotary_width(head_dim, fraction) == width

    @pytest.mark.parametrize(("head_dim", "fraction"), [(100, 0.29), (65, 1.0), (4, 0.75), (8, 0.1), (10, 0.25)])
    def test_fractions_that_give_no_whole_pairs_raise(self, head_dim, fraction):
        with pytest.raises(ValueError, match=rf"`fraction` .*must .*got {fraction} x {head_dim}"):
            rj.rotary_width(head_dim, fraction)

    @pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, math.nan, True, "0.5"])
    def test_fractions_out_of_range_raise(self, fraction):
        with unchecked(), pytest.raises((ValueError, TypeError), match=rf"`fraction` must .*got {fraction!r}"):
            rj.rotary_width(64, fraction)


class TestRopeSpec:
    def test_it_is_a_value(self):
        make = lambda: rj.RopeSpec(  # noqa: E731
            rotary_dim=8, theta=1e5, transform=rj.LongRoPE(**LISTS, original_length=16, factor=4.0), head_dim=12
        )
        assert make() == make()
        assert hash(make()) == hash(make())
        assert make() != dataclasses.replace(make(), theta=1e4)
        with pytest.raises(dataclasses.FrozenInstanceError):
            make().theta = 1.0  # type: ignore[misc]

    @pytest.mark.parametrize("kind", [list, np.array])
    def test_a_list_edited_later_changes_nothing(self, kind):
        long = kind([1.0, 2.0, 4.0, 8.0])
        method = rj.LongRoPE(short_factors=[1.0] * 4, long_factors=long, original_length=16, factor=4.0)
        before = rj.RopeSpec(8, transform=method).schedule(length=17).float64()
        long[1] = 100.0
        np.testing.assert_array_equal(rj.RopeSpec(8, transform=method).schedule(length=17).float64(), before)

    def test_a_rotary_width_above_the_head_raises(self):
        with pytest.raises(ValueError, match=r"`rotary_dim` must .*8.*16"):
            rj.RopeSpec(16, head_dim=8)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"layout": "neox"}, r"`layout` must .*'neox'"),
            ({"transform": "yarn"}, r"`transform` must .*'yarn'"),
            ({"pair_axes": (0, 1)}, r"`pair_axes` must .*4.*\(0, 1\)"),
            ({"softmax_scale": 0.0}, r"`softmax_scale` must .*0\.0"),
            ({"softmax_scale": -1.0}, r"`softmax_scale` must .*-1\.0"),
            ({"softmax_scale": math.nan}, r"`softmax_scale` must .*nan"),
            ({"softmax_scale": True}, r"`softmax_scale` must .*True"),
            ({"softmax_scale": "2"}, r"`softmax_scale` must .*'2'"),
            ({"head_dim": 8.0}, r"`head_dim` must .*8\.0"),
            ({"pair_axes": (0, 1, 2, -1)}, r"`pair_axes` must .*-1"),
        ],
    )
    def test_fields_are_checked(self, changes: dict[str, Any], message):
        with unchecked(), pytest.raises((ValueError, TypeError), match=message):
            rj.RopeSpec(**({"rotary_dim": 8} | changes))


LISTS = {"short_factors": [1.0] * 4, "long_factors": [1.0, 2.0, 4.0, 8.0]}


def all_schedules(rope: rj.ModelRope, length: Any = None) -> dict[str, Any]:
    return rope.schedules(length)


class TestModelRope:
    LOCAL = rj.RopeSpec(8, theta=1e4)
    GLOBAL = rj.RopeSpec(8, theta=1e6, transform=rj.PositionInterpolation(factor=8.0))

    def test_a_schedule_for_every_group(self):
        rope = rj.ModelRope({"local": self.LOCAL, "global": self.GLOBAL, "none": None}, ("local", "global", "none"))
        schedules = all_schedules(rope)
        assert list(schedules) == ["local", "global", "none"]
        assert schedules["none"] is None
        np.testing.assert_allclose(schedules["local"].float64(), reference.plain(8, 1e4), rtol=1e-15)
        np.testing.assert_allclose(schedules["global"].float64(), reference.plain(8, 1e6) / 8, rtol=1e-15)

    def test_two_kinds_of_layer_turn_at_their_own_pace(self):
        """Local base 1e4, global base 1e6 interpolated by 8, head 256: the first pair at 8000, the last frequencies."""
        local = rj.RopeSpec(256, theta=1e4).schedule().float64()
        far = rj.RopeSpec(256, theta=1e6, transform=rj.PositionInterpolation(factor=8.0)).schedule().float64()
        np.testing.assert_allclose((8000 * local[0], 8000 * far[0]), (8000, 1000), rtol=1e-15)
        np.testing.assert_allclose((local[-1], far[-1]), (1.07460783e-4, 1.39246732e-7), rtol=5e-9)

    @pytest.mark.parametrize("groups", [("local", "other"), ("other",), ()])
    def test_groups_and_specs_must_match(self, groups):
        with pytest.raises(ValueError, match=r"`specs` must .*local"):
            rj.ModelRope({"local": self.LOCAL}, groups)

    def test_the_caller_keeps_no_hold_on_it(self):
        specs: dict[str, rj.RopeSpec | None] = {"local": self.LOCAL}
        sources = {"theta": "config.json"}
        rope = rj.ModelRope(specs, ("local",), sources=sources)
        specs["local"], sources["theta"] = None, "edited"
        assert rope.specs["local"] == self.LOCAL
        assert rope.sources["theta"] == "config.json"

    def test_models_of_one_spec_are_apart(self):
        shared = rj.RopeSpec(8)
        one, other = (rj.ModelRope({"all": shared}, ("all",)) for _ in range(2))
        scaled = dataclasses.replace(shared, transform=rj.PositionInterpolation(factor=2.0))
        one = dataclasses.replace(one, specs={"all": scaled})
        np.testing.assert_array_equal(all_schedules(one)["all"].float64(), reference.plain(8, 1e4) / 2)
        np.testing.assert_array_equal(all_schedules(other)["all"].float64(), shared.schedule().float64())

    def test_it_needs_a_length_when_one_group_does(self):
        dynamic = rj.RopeSpec(8, transform=rj.DynamicNTK(factor=2.0, original_length=16))
        rope = rj.ModelRope({"a": self.LOCAL, "b": dynamic}, ("a", "b"))
        assert rope.needs_length
        assert not rj.ModelRope({"a": self.LOCAL, "b": None}, ("a", "b")).needs_length
        assert all_schedules(rope, jnp.array([8, 32]))["a"].stack == (2, 1)
        with pytest.raises(ValueError, match=r"`length` must be given to DynamicNTK"):
            rope.schedules()

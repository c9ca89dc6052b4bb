"""What methods refuse: at construction where a number is known, naming the argument, the rule and the value."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests.unchecked import unchecked

ONES = (1.0,) * 4
VALID: dict[str, dict[str, Any]] = {
    "PositionInterpolation": {"factor": 2.0},
    "NTKAware": {"factor": 2.0},
    "BaseChange": {"theta": 1e5},
    "DynamicNTK": {"factor": 2.0, "original_length": 16},
    "NTKByParts": {"factor": 2.0, "original_length": 16},
    "YaRN": {"factor": 2.0, "original_length": 16},
    "DynamicYaRN": {"original_length": 16},
    "Llama3": {"factor": 2.0, "original_length": 16},
    "LongRoPE": {"short_factors": ONES, "long_factors": ONES, "original_length": 16, "factor": 2.0},
    "ClippedRoPE": {"pairs": 2},
    "Proportional": {"fraction": 0.5},
    "Rescale": {"factors": ONES},
    "AttentionTemperature": {"scale": 1.1},
}
NUMBERS: dict[str, tuple[Any, ...]] = {
    "factor": (0.5, 0, -1, math.nan, math.inf, True, "8", None),
    "original_length": (0, -4096, math.nan, math.inf, True, "4096", None),
    "theta": (0, 1.0, -1e4, math.nan, math.inf, True, "1e4", None),
    "alpha": (-1, math.nan, True, "1"),
    "beta": (1, 0, math.nan, True, "32"),
    "beta_fast": (0.5, 0, math.nan, True, "32"),
    "beta_slow": (33, 0, -1, math.nan, True, "1"),
    "low_freq_factor": (4, 5, -1, math.nan, True, "1"),
    "high_freq_factor": (1, 0.5, math.nan, True, "4"),
    "attention_scale": (0, 0.0, -1.0, math.nan, math.inf, True, "1"),
    "scale": (0, 0.0, -1.0, math.nan, math.inf, True, "1", None),
    "mscale": (-0.707, math.nan, True, "0.707"),
    "mscale_all_dim": (-0.707, math.nan, True, "0.707"),
    "truncate": (1, 0, None, "false"),
    "ramp": ("turn", None, 1),
    "pairs": (1, 0, -2, 2.0, True, "2", None),
    "fraction": (0, -0.5, 1.5, math.nan, True, "0.5", None),
    "short_factors": ((), (1.0, 0.0, 1.0, 1.0), (1.0, math.nan, 1.0, 1.0), (1.0, True, 1.0, 1.0), "ones", 4.0, None),
    "long_factors": ((), (1.0, -1.0, 1.0, 1.0), (1.0, math.inf, 1.0, 1.0), ("1", 1.0, 1.0, 1.0), 4.0, None),
    "factors": ((), (1.0, 0.0, 1.0, 1.0), (1.0, math.nan, 1.0, 1.0), (True, 1.0, 1.0, 1.0), "ones", 4.0, None),
}
# A field whose default is None: None means "absent".
CASES = [
    pytest.param(name, argument, value, id=f"{name}-{argument}-{value!r}")
    for name in VALID
    for argument in rj.scaling.METHODS[name].__dataclass_fields__  # type: ignore[attr-defined]
    for value in NUMBERS[argument]
]


@pytest.mark.parametrize(("name", "argument", "value"), CASES)
def test_every_known_number_is_checked(name, argument, value):
    with unchecked(), pytest.raises((ValueError, TypeError)) as caught:
        rj.scaling.METHODS[name](**(VALID[name] | {argument: value}))
    message = str(caught.value)
    assert f"`{argument}" in message
    assert "must be" in message
    assert "got" in message
    shown = (
        next((entry for entry in value if not isinstance(entry, float) or not 0 < entry < math.inf), value)
        if (isinstance(value, tuple) and value)
        else value
    )
    assert f"{shown}" in message


@pytest.mark.parametrize("method", [rj.YaRN, rj.DynamicYaRN])
def test_equal_turns_are_a_step_in_the_index_ramp_and_nothing_in_turns(method):
    fields = {"factor": 32.0, "original_length": 4096, "beta_fast": 1.0, "beta_slow": 1.0}
    plain = rj.geometric_schedule(64, theta=50_000.0)
    ratio = method(**fields)(plain, length=4096).float64() / plain.float64()
    # One turn lies at pair 19.2: up to 19 pairs are kept, from 20 on divided.
    np.testing.assert_allclose(ratio, np.where(np.arange(32) < 20, 1.0, 1 / 32), rtol=1e-14)
    with pytest.raises(ValueError, match="`beta_fast` must be above"):
        method(**fields, ramp="turns")


def test_the_valid_settings_are_valid():
    for name, fields in VALID.items():
        assert rj.scaling.METHODS[name](**fields) == rj.scaling.METHODS[name](**fields)


def test_methods_take_keywords_only_and_no_unknown_ones():
    for name, fields in VALID.items():
        with pytest.raises(TypeError):
            rj.scaling.METHODS[name](*fields.values())
        with pytest.raises(TypeError, match=r"attn_factor"):
            rj.scaling.METHODS[name](**(fields | {"attn_factor": 1.0}))


def test_a_factor_of_one_and_a_scale_of_one_are_kept():
    """Zero and one are values, not absences."""
    start = rj.geometric_schedule(8)
    assert rj.YaRN(factor=4.0, original_length=16, attention_scale=1.0)(start).attention_scale == 1.0
    implied = rj.YaRN(factor=4.0, original_length=16, attention_scale=None)(start).attention_scale
    np.testing.assert_allclose(implied, 1.138629436, rtol=1e-7)
    explicit = rj.LongRoPE(**(VALID["LongRoPE"] | {"attention_scale": 1.1}))(start, length=1).attention_scale
    np.testing.assert_allclose(explicit, 1.1, rtol=1e-7)


class TestLists:
    def test_lists_of_another_width_name_both_numbers(self):
        """Rotary 96 of head 128 has 48 pairs; lists of 64 follow the head and are refused."""
        start = rj.geometric_schedule(96)
        method = lambda n: rj.LongRoPE(  # noqa: E731
            short_factors=(1.0,) * n, long_factors=(2.0,) * n, original_length=16, factor=2.0
        )
        assert method(48)(start, length=17).pairs == 48
        for length in (16, 17):
            with pytest.raises(ValueError, match=r"`(short|long)_factors` must .*48.*got.*64"):
                method(64)(start, length=length)
        with pytest.raises(ValueError, match=r"`factors` must .*48.*got.*64"):
            rj.Rescale(factors=(1.0,) * 64)(start)

    def test_lists_of_unequal_length_name_both_numbers(self):
        with pytest.raises(ValueError, match=r"`long_factors` must .*short_factors.*got 3 and 4"):
            rj.LongRoPE(short_factors=ONES, long_factors=ONES[:3], original_length=16, factor=2.0)

    def test_traced_schedules_are_checked_by_shape(self):
        with pytest.raises(ValueError, match=r"`factors` must .*4.*got.*3"):
            jax.jit(rj.Rescale(factors=(1.0,) * 3))(rj.geometric_schedule(8))

    def test_array_lists_are_taken_unhashed(self):
        method = rj.Rescale(factors=jnp.array([1.0, 2.0, 4.0, 8.0]))
        plain = rj.geometric_schedule(8).float64()
        np.testing.assert_allclose(method(rj.geometric_schedule(8)).float64(), plain / [1, 2, 4, 8], rtol=1e-15)
        with pytest.raises(TypeError, match=r"hash"):
            hash(method)

    def test_clipping_more_pairs_than_there_are_raises(self):
        with pytest.raises(ValueError, match=r"`pairs` must be at most .*4.*got 5"):
            rj.ClippedRoPE(pairs=5)(rj.geometric_schedule(8))


NEEDS_BASE = {
    "NTKAware": rj.NTKAware(factor=2.0),
    "BaseChange": rj.BaseChange(theta=1e5),
    "DynamicNTK": rj.DynamicNTK(factor=2.0, original_length=16),
    "YaRN": rj.YaRN(factor=2.0, original_length=16),
    "DynamicYaRN": rj.DynamicYaRN(original_length=16),
}


class TestMethodsDefinedOnTheBase:
    @pytest.mark.parametrize("name", NEEDS_BASE)
    @pytest.mark.parametrize(
        "before",
        [
            rj.Proportional(fraction=0.5),
            rj.Resonance(),
            rj.Drop(),
            rj.Llama3(factor=8.0, original_length=64),
            rj.ClippedRoPE(pairs=2),
        ],
        ids=lambda transform: type(transform).__name__,
    )
    def test_a_schedule_that_is_not_geometric_raises(self, name, before):
        with pytest.raises(ValueError, match=rf"{name}.* must .*geometric.*got"):
            rj.chain(before, NEEDS_BASE[name])(rj.geometric_schedule(8), length=32)

    @pytest.mark.parametrize("name", NEEDS_BASE)
    def test_one_pair_has_no_slope(self, name):
        with pytest.raises(ValueError, match=rf"{name}.* must .*2 pairs.*got 1"):
            NEEDS_BASE[name](rj.geometric_schedule(2), length=32)

    def test_the_turns_ramp_needs_no_base(self):
        method = rj.YaRN(factor=2.0, original_length=16, ramp="turns")
        assert rj.chain(rj.Resonance(), method)(rj.geometric_schedule(8)).pairs == 4


class TestProportional:
    @pytest.mark.parametrize(
        ("rotary_dim", "fraction", "kept"), [(10, 0.25, 1), (96, 0.3, 14), (64, 0.25, 8), (8, 1.0, 4), (100, 0.29, 14)]
    )
    def test_it_floors_as_defined(self, rotary_dim, fraction, kept):
        schedule = rj.Proportional(fraction=fraction)(rj.geometric_schedule(rotary_dim))
        np.testing.assert_array_equal(schedule.inv_freq[:kept], rj.geometric_schedule(rotary_dim).inv_freq[:kept])
        np.testing.assert_array_equal(schedule.float64()[kept:], 0)

    def test_a_fraction_that_keeps_no_pair_or_several(self):
        schedule = rj.Proportional(fraction=0.1)(rj.geometric_schedule(8))
        np.testing.assert_array_equal(schedule.float64(), 0)


def test_chain_takes_transforms_only():
    with unchecked(), pytest.raises(TypeError, match=r"`transforms` must .*'yarn'"):
        rj.chain(rj.Identity(), "yarn")  # type: ignore[arg-type]


def test_traced_numbers_are_not_checked():
    traced = jax.jit(lambda factor: rj.PositionInterpolation(factor=factor)(rj.geometric_schedule(8)))
    np.testing.assert_allclose(traced(jnp.float32(0.5)).float64(), 2 * rj.geometric_schedule(8).float64(), rtol=1e-15)

"""Every method against the published formula in float64, on the host and traced."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from tests.reference import FLOAT64, Setting, plain
from tests.scaling.contract import CONTRACT, NAMES

WIDTHS = (8, 16, 64, 128, 256)
THETAS = (1e4, 5e5, 1e7)
FACTORS = (1.0, 1.5, 4.0, 8.0, 40.0, 64.0)
LENGTHS = (256, 4096, 32_768, 262_144)
PRESENT = (0.5, 1.0, 3.25, 40.0)  # present length / trained length


def grid(step: int, widths: tuple[int, ...] = WIDTHS) -> list[Setting]:
    """Every `step`-th point of the whole grid."""
    points = list(product(widths, THETAS, FACTORS, LENGTHS, PRESENT))
    return [
        Setting(width, theta, factor, original, int(present * original))
        for width, theta, factor, original, present in points[::step]
    ]


def assert_agrees(line, setting, schedule):
    """To 1e-7 in float32; with the residual to 1e-14, beside what rounding does to the plain frequency edited."""
    expected = line.inv_freq(setting, FLOAT64)
    scale = line.scale(setting)
    assert schedule.inv_freq.dtype == schedule.residual.dtype == schedule.attention_scale.dtype == np.float32
    np.testing.assert_allclose(np.asarray(schedule.inv_freq, np.float64), expected, rtol=1e-7, err_msg=str(setting))
    np.testing.assert_array_less(
        np.abs(schedule.float64() - expected), 1e-14 * expected + rounding(setting) + 1e-300, err_msg=str(setting)
    )
    np.testing.assert_allclose(np.float64(schedule.attention_scale), scale, rtol=1e-7, err_msg=str(setting))


def rounding(setting):
    """A blend of two frequencies may cancel: its error is relative to the plain frequency it starts from."""
    return 2e-15 * plain(setting.rotary_dim, setting.theta)


@pytest.mark.parametrize("line", CONTRACT, ids=NAMES)
def test_host_frequencies_and_scale_are_the_published_ones(line):
    for setting in grid(37):
        start = rj.geometric_schedule(setting.rotary_dim, theta=setting.theta)
        schedule = line.build(setting)(start, length=setting.length)
        assert_agrees(line, setting, schedule)


@partial(jax.jit, static_argnames="rotary_dim")
def traced(start, factor, original_length, length, theta, rotary_dim):
    """All methods in one program: base frequencies, factor and both lengths are data."""
    setting = Setting(rotary_dim, theta, factor, original_length, length)
    return {line.name: line.build(setting)(start, length=length) for line in CONTRACT}


@pytest.mark.parametrize("rotary_dim", [8, 64, 256])
def test_traced_frequencies_keep_float64(rotary_dim):
    for setting in grid(29, widths=(rotary_dim,)):
        start = rj.geometric_schedule(rotary_dim, theta=setting.theta)
        schedules = traced(
            start,
            jnp.float32(setting.factor),
            jnp.int32(setting.original_length),
            jnp.int32(setting.length),
            jnp.float32(setting.theta),
            rotary_dim=rotary_dim,
        )
        for line in CONTRACT:
            assert_agrees(line, setting, schedules[line.name])
            host = line.build(setting)(start, length=setting.length).float64()
            error = np.abs(schedules[line.name].float64() - host)
            np.testing.assert_array_less(error, 2e-15 * host + rounding(setting) / 2 + 1e-300, err_msg=line.name)


@settings(deadline=None, max_examples=60)
@given(
    index=st.integers(0, len(CONTRACT) - 1),
    rotary_dim=st.integers(3, 64).map(lambda pairs: 2 * pairs),
    theta=st.floats(1e4, 1e7),
    factor=st.floats(1.0, 64.0),
    original_length=st.integers(256, 262_144),
    present=st.floats(0.1, 64.0),
)
def test_any_setting_agrees(index, rotary_dim, theta, factor, original_length, present):
    setting = Setting(rotary_dim, theta, factor, original_length, max(1, int(present * original_length)))
    line = CONTRACT[index]
    start = rj.geometric_schedule(rotary_dim, theta=theta)
    assert_agrees(line, setting, line.build(setting)(start, length=setting.length))


@pytest.mark.parametrize("line", CONTRACT, ids=NAMES)
def test_frequencies_descend_and_stay_between_original_and_interpolated(line):
    """Except resonance, which rounds each wavelength on its own, and base change, which reaches further than 1 / s."""
    setting = Setting(rotary_dim=64, factor=4.0)
    start = rj.geometric_schedule(64)
    ratio = line.build(setting)(start, length=setting.length).float64() / start.float64()
    if "Resonance" not in line.name:
        assert np.all(np.diff(ratio) <= 1e-15)
        assert np.all(ratio <= 1 + 1e-15)
        lowest = 0.0 if line.name in ("ClippedRoPE", "Proportional", "Drop") else 1 / 4 - 1e-15
        if line.name not in ("DynamicNTK",):
            assert np.all(ratio >= lowest)


def test_changing_the_factor_changes_the_last_pair():
    start = rj.geometric_schedule(64, theta=5e5)
    for line in CONTRACT:
        if line.has_factor and line.name != "AttentionTemperature":
            settings_ = [replace(Setting(64, 5e5), factor=factor, length=8192) for factor in (4.0, 8.0, 16.0, 32.0)]
            last = {float(line.build(s)(start, length=s.length).inv_freq[-1]) for s in settings_}
            assert len(last) == 4, line.name

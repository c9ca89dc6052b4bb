"""Every method, and what runtimes take apart, on one small model."""

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.scaling.base import FrequencyTransform
from tests.huggingface.runtime_models import Schedule

WIDTH, TRAINED, LONG, THETA = 32, 64, 256, 10_000.0
PAIRS = WIDTH // 2
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "head_dim": WIDTH,
    "num_hidden_layers": 2,
    "rope_theta": THETA,
    "max_position_embeddings": TRAINED,
}
SHORT, STRETCHED = (tuple(np.linspace(1, last, PAIRS).tolist()) for last in (2, 9))
STATIC: MappingProxyType[str, FrequencyTransform] = MappingProxyType(
    {
        "Identity": rj.Identity(),
        "PositionInterpolation": rj.PositionInterpolation(factor=4),
        "NTKAware": rj.NTKAware(factor=4.0),
        "BaseChange": rj.BaseChange(theta=5e5),
        "NTKByParts": rj.NTKByParts(factor=4.0, original_length=TRAINED, beta=4.0),
        "YaRN": rj.YaRN(factor=4, original_length=TRAINED, beta_fast=4.0),
        "Llama3": rj.Llama3(factor=4.0, original_length=TRAINED, low_freq_factor=1.0, high_freq_factor=4.0),
        "ClippedRoPE": rj.ClippedRoPE(pairs=5),
        "Proportional": rj.Proportional(fraction=0.5),
        "Resonance": rj.Resonance(),
        "Rescale": rj.Rescale(factors=STRETCHED),
        "AttentionTemperature": rj.AttentionTemperature(scale=1.2),
        "Drop": rj.Drop(),
    }
)
DYNAMIC: MappingProxyType[str, FrequencyTransform] = MappingProxyType(
    {
        "DynamicNTK": rj.DynamicNTK(factor=2.0, original_length=TRAINED),
        "DynamicYaRN": rj.DynamicYaRN(original_length=TRAINED, beta_fast=4.0),
        "LongRoPE": rj.LongRoPE(short_factors=SHORT, long_factors=STRETCHED, original_length=TRAINED, factor=4.0),
    }
)
# Variants of one method that runtimes take apart.
VARIANTS: MappingProxyType[str, FrequencyTransform] = MappingProxyType(
    {
        "YaRN, own scale": rj.YaRN(factor=4.0, original_length=TRAINED, beta_fast=4.0, attention_scale=1.0),
        "YaRN, not rounded": rj.YaRN(factor=4.0, original_length=TRAINED, beta_fast=4.0, truncate=False),
        "YaRN, in turns": rj.YaRN(factor=4.0, original_length=TRAINED, beta_fast=4.0, ramp="turns"),
        "YaRN, mscale alone": rj.YaRN(factor=4.0, original_length=TRAINED, mscale=0.7),
        "YaRN, mscales": rj.YaRN(factor=4.0, original_length=TRAINED, mscale=0.7, mscale_all_dim=1.0),
        "YaRN on NTK": rj.chain(rj.NTKAware(factor=2.0), rj.YaRN(factor=2.0, original_length=TRAINED)),
        "YaRN with temperature": rj.chain(
            rj.YaRN(factor=4.0, original_length=TRAINED), rj.AttentionTemperature(scale=1.1)
        ),
        "PI with temperature": rj.chain(rj.PositionInterpolation(factor=2.0), rj.AttentionTemperature(scale=1.1)),
        "PI on NTK": rj.chain(rj.NTKAware(factor=2.0), rj.PositionInterpolation(factor=1.5)),
    }
)


def model(transform: FrequencyTransform, **changes: Any) -> rj.ModelRope:
    return rj.ModelRope({"all": rj.RopeSpec(WIDTH, theta=THETA, transform=transform, **changes)}, ("all",) * 2)


OWN = model(rj.Identity())


def same(got: Schedule, schedule: rj.FrequencySchedule | None) -> None:
    assert schedule is not None
    np.testing.assert_allclose(got[0], schedule.float64(), rtol=1e-6, atol=0)
    assert got[1] == pytest.approx(float(schedule.attention_scale), rel=1e-6)


def numbers(rope: rj.ModelRope) -> Schedule:
    schedule = rope.schedules()["all"]
    assert schedule is not None
    return np.asarray(schedule.float64()), float(schedule.attention_scale)

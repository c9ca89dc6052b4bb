"""Writing configurations: what comes back is what left."""

import json
import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface import Llama4QueryScale, Mistral3QueryScale
from tests.huggingface.configs import CONFIGS, merged

BASE: dict[str, Any] = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 1, "max_position_embeddings": 65536}
VERSIONS: tuple[Literal[4, 5], ...] = (4, 5)


def alone(spec: rj.RopeSpec) -> rj.ModelRope:
    return rj.ModelRope({"all": spec}, ("all",))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CONFIGS)
def test_what_was_read_is_read_again(name: str, version: Literal[4, 5]) -> None:
    rope = rj.from_huggingface(CONFIGS[name])
    if (name, version) == ("gemma-4", 4):
        with pytest.raises(ValueError, match=r"`version` must be 5.*got"):
            rj.to_huggingface(rope, version=version)
        return
    config = merged(CONFIGS[name], rope, version)
    again = rj.from_huggingface(config)
    assert (again.specs, again.layer_groups) == (rope.specs, rope.layer_groups)
    assert merged(CONFIGS[name], again, version) == config


NAMED = (
    rj.Identity(),
    rj.PositionInterpolation(factor=4.0),
    rj.DynamicNTK(factor=2.0, original_length=4096),
    rj.YaRN(factor=4.0, original_length=4096),
    rj.YaRN(factor=4.0, original_length=4096, beta_fast=16, beta_slow=2.0, truncate=False, attention_scale=1.5),
    rj.YaRN(factor=40, original_length=4096, mscale=0.707),
    rj.YaRN(factor=40, original_length=4096, mscale_all_dim=0.8),
    rj.YaRN(factor=40, original_length=4096, mscale=1.0, mscale_all_dim=0.8),
    rj.YaRN(factor=40, original_length=4096, mscale=0.0, mscale_all_dim=0.0),
    rj.YaRN(factor=40, original_length=4096, mscale=0.0),
    rj.Llama3(factor=8.0, original_length=8192, high_freq_factor=8.0),
    rj.LongRoPE(
        short_factors=(1.0,) * 32,
        long_factors=tuple(range(1, 33)),
        original_length=4096,
        factor=8.0,
        attention_scale=1.1,
    ),
    rj.LongRoPE(short_factors=(1.0,) * 32, long_factors=(2.0,) * 32, original_length=4096, factor=8.0),
    rj.Proportional(fraction=0.5),
    rj.chain(rj.Proportional(fraction=0.25), rj.PositionInterpolation(factor=8.0)),
    rj.Rescale(factors=tuple(1 + 0.1 * i for i in range(32))),
    rj.chain(rj.Rescale(factors=(2.0,) * 31 + (3.0,)), rj.AttentionTemperature(scale=1.25)),
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transform", NAMED, ids=lambda transform: type(transform).__name__)
def test_named_methods_come_back_as_they_are(transform: rj.FrequencyTransform, version: Literal[4, 5]) -> None:
    rope = alone(rj.RopeSpec(64, theta=5e5, transform=transform))
    again = rj.from_huggingface(merged(BASE, rope, version)).specs["all"]
    assert again is not None
    if isinstance(transform, rj.Rescale) or "Rescale" in repr(transform):
        # Written as a quotient of frequencies, so to the last digit but one.
        np.testing.assert_allclose(again.schedule().float64(), rope.specs["all"].schedule().float64(), rtol=1e-14)  # type: ignore[union-attr]
        np.testing.assert_array_equal(again.schedule().attention_scale, rope.specs["all"].schedule().attention_scale)  # type: ignore[union-attr]
        assert type(again.transform) is type(transform)
    else:
        assert again == rope.specs["all"]


def transformers_scale(entry: dict[str, Any]) -> float:
    """What transformers 5.24 multiplies cos and sin by under YaRN: zeros are absence to it."""
    log, stated = 0.1 * math.log(entry["factor"]), entry.get("attention_factor")
    if stated is not None:
        return float(stated)
    mscale, all_dim = entry.get("mscale"), entry.get("mscale_all_dim")
    return (log * mscale + 1) / (log * all_dim + 1) if mscale and all_dim else log + 1


@pytest.mark.parametrize("mscale", [None, 0.0, 0.7])
@pytest.mark.parametrize("all_dim", [None, 0.0, 0.7, 1.0])
def test_transformers_scales_cos_and_sin_by_the_same(mscale: float | None, all_dim: float | None) -> None:
    transform = rj.YaRN(factor=40.0, original_length=4096, mscale=mscale, mscale_all_dim=all_dim)
    spec = rj.RopeSpec(64, transform=transform)
    entry = rj.to_huggingface(alone(spec))["rope_parameters"]
    assert transformers_scale(entry) == pytest.approx(float(spec.schedule().attention_scale), rel=1e-6)


NAMELESS = (
    rj.NTKAware(factor=8.0),
    rj.NTKByParts(factor=4.0, original_length=4096),
    rj.YaRN(factor=4.0, original_length=4096, ramp="turns"),
    rj.Resonance(),
    rj.AttentionTemperature(scale=1.2),
    rj.chain(rj.YaRN(factor=4.0, original_length=4096), rj.Resonance()),
    rj.BaseChange(theta=1e6),
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transform", NAMELESS, ids=lambda transform: type(transform).__name__)
def test_static_methods_without_a_name_leave_as_lists(transform: Any, version: Literal[4, 5]) -> None:
    spec = rj.RopeSpec(64, theta=5e5, transform=transform)
    config = merged(BASE, alone(spec), version)
    entry = config.get("rope_parameters") or config["rope_scaling"]
    if isinstance(transform, rj.BaseChange):
        assert entry is None or entry == {"rope_type": "default", "rope_theta": 1e6}
    else:
        assert entry["rope_type"] == "longrope" and entry["short_factor"] == entry["long_factor"]
    again = rj.from_huggingface(config).specs["all"]
    assert again is not None
    np.testing.assert_allclose(again.schedule().float64(), spec.schedule().float64(), rtol=1e-14)
    np.testing.assert_array_equal(again.schedule().attention_scale, spec.schedule().attention_scale)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (rj.Drop(), r"must leave every pair turning.*pair 0 \(32 of 32"),
        (rj.ClippedRoPE(pairs=4), "frequency of 0 at pair 31"),
        (rj.chain(rj.Proportional(fraction=0.5), rj.Resonance()), "frequency of 0 at pair 16"),
        (rj.DynamicYaRN(original_length=4096), "must be static or have a rope type"),
        (rj.chain(rj.DynamicNTK(factor=2.0, original_length=4096), rj.Resonance()), "must be static"),
    ],
)
def test_what_has_no_form_is_refused(transform: rj.FrequencyTransform, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rj.to_huggingface(alone(rj.RopeSpec(64, transform=transform)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"softmax_scale": 1.5}, "`softmax_scale` must be 1"),
        ({"query_scale": Llama4QueryScale()}, "`query_scale` must be one that"),
        ({"pair_axes": (1, 0) * 16}, "`pair_axes` must be in blocks"),
        (
            {
                "transform": rj.YaRN(factor=2.0, original_length=4096),
                "query_scale": Mistral3QueryScale(beta=0.1, original_length=8192),
            },
            "`query_scale` must share the original length",
        ),
        ({"head_dim": 128, "transform": rj.Proportional(fraction=0.5)}, "`rotary_dim` must be the head's width"),
    ],
)
def test_settings_without_a_field_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rj.to_huggingface(alone(rj.RopeSpec(64, **changes)))


def test_partial_widths_survive_the_truncation_of_other_readers() -> None:
    for head_dim in (6, 10, 58, 96, 128, 200):
        for rotary_dim in range(2, head_dim, 2):
            fraction = rj.to_huggingface(alone(rj.RopeSpec(rotary_dim, head_dim=head_dim)))["rope_parameters"]
            assert int(head_dim * fraction["partial_rotary_factor"]) == rotary_dim


def test_parameters_that_are_arrays_leave_as_numbers() -> None:
    found = jnp.arange(1.0, 33.0)
    method = rj.LongRoPE(short_factors=found, long_factors=2 * found, original_length=4096, factor=jnp.float32(8.0))
    entry = json.loads(json.dumps(rj.to_huggingface(alone(rj.RopeSpec(64, transform=method)))))["rope_parameters"]
    assert entry["short_factor"] == list(range(1, 33)) and entry["factor"] == 8.0
    entry = rj.to_huggingface(alone(rj.RopeSpec(64, transform=rj.Rescale(factors=found))))["rope_parameters"]
    np.testing.assert_allclose(entry["long_factor"], np.arange(1, 33), rtol=1e-14)


def test_dynamic_ntk_states_where_it_starts() -> None:
    rope = alone(rj.RopeSpec(64, transform=rj.DynamicNTK(factor=2.0, original_length=4096)))
    assert rj.to_huggingface(rope) == {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
        "max_position_embeddings": 4096,
    }


def test_rounding_of_nested_groups_is_stated_where_each_reader_looks() -> None:
    specs = {
        "full_attention": rj.RopeSpec(64, transform=rj.YaRN(factor=8.0, original_length=8192, truncate=False)),
        "sliding_attention": rj.RopeSpec(64),
    }
    layers = ("sliding_attention", "full_attention")
    exported = rj.to_huggingface(rj.ModelRope(specs, layers))["rope_parameters"]
    assert exported["truncate"] is False and exported["full_attention"]["truncate"] is False
    base = BASE | {"layer_types": list(layers), "num_hidden_layers": 2, "rope_parameters": exported}
    assert rj.from_huggingface(base).specs == specs
    del base["rope_parameters"]["full_attention"]["truncate"]
    assert rj.from_huggingface(base).specs == specs


@pytest.mark.parametrize("version", [3, "5"])
def test_versions_are_four_and_five(version: Any, unchecked: None) -> None:
    with pytest.raises(ValueError, match="`version` must be 4 or 5"):
        rj.to_huggingface(alone(rj.RopeSpec(64)), version=version)

"""Every rope key of GGUF files against what llama.cpp computes from it, reading and writing."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.gguf_rope import FREQS, LONG, SHORT, rope_metadata
from rope_jax.huggingface.weights.gguf import open_gguf
from tests.huggingface.weights.gguf_files import HEAD_DIM, SIZES, hugging_face_weights, llama_cpp, write_file

PAIRS = HEAD_DIM // 2
DIVISORS = [1.0, 1.5, 2.25, 40.0]


def opened_rope(tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any] | None = None) -> rj.ModelRope:
    metadata = {f"llama.rope.{key}": value for key, value in keys.items()}
    arrays = {name: np.asarray(values, np.float32) for name, values in (tensors or {}).items()}
    path = write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata=metadata, tensors=arrays)
    return rj.from_huggingface(open_gguf(path).config)


def check(rope: rj.ModelRope, keys: dict[str, Any], divisors: Any = None) -> None:
    schedule = rope.schedules()["all"]
    assert schedule is not None
    inv_freq, scale = llama_cpp({f"llama.rope.{key}": value for key, value in keys.items()}, divisors)
    np.testing.assert_allclose(schedule.float64(), inv_freq, rtol=1e-6)
    np.testing.assert_allclose(schedule.attention_scale, scale, rtol=1e-6)


READ: dict[str, dict[str, Any]] = {
    "plain": {},
    "base": {"freq_base": 500_000.0},
    "linear": {"scaling.type": "linear", "scaling.factor": 4.0},
    "linear without a type": {"scaling.factor": 4.0},
    "the older name": {"scale_linear": 4.0},
    "the newer name wins": {"scale_linear": 4.0, "scaling.factor": 2.0},
    "an unset factor": {"scaling.factor": 0.0},
    "none ignores the factor": {"scaling.type": "none", "scaling.factor": 4.0},
    "a lone scale": {"scaling.attn_factor": 1.25},
    "linear and a scale": {"scaling.factor": 4.0, "scaling.attn_factor": 1.25},
    "trained further": {"scaling.factor": 4.0, "scaling.finetuned": True},
    "yarn": {"scaling.type": "yarn", "scaling.factor": 8.0, "scaling.original_context_length": 512},
    "yarn, length of the model": {"scaling.type": "yarn", "scaling.factor": 8.0},
    "yarn and a scale": {
        "scaling.type": "yarn",
        "scaling.factor": 8.0,
        "scaling.original_context_length": 512,
        "scaling.attn_factor": 0.5,
    },
    "keys of other architectures, neutral": {
        "scaling.type": "yarn",
        "scaling.factor": 8.0,
        "scaling.yarn_ext_factor": 1.0,
        "scaling.yarn_attn_factor": 1.0,
        "scaling.yarn_log_multiplier": 0.0,
        "scaling.yarn_beta_fast": 32.0,
        "scaling.yarn_beta_slow": 1.0,
    },
}


@pytest.mark.parametrize("keys", READ.values(), ids=READ)
def test_keys_mean_what_llama_cpp_does(tmp_path: Path, keys: dict[str, Any]) -> None:
    check(opened_rope(tmp_path, keys), keys)


@pytest.mark.parametrize("keys", [{}, {"scaling.factor": 2.0}, {"scaling.attn_factor": 1.25}, {"scaling.type": "none"}])
def test_divisors(tmp_path: Path, keys: dict[str, Any]) -> None:
    check(opened_rope(tmp_path, keys, {FREQS: DIVISORS}), keys, DIVISORS)


def test_turns_of_the_yarn_ramp(tmp_path: Path) -> None:
    keys = {"scaling.type": "yarn", "scaling.factor": 8.0, "scaling.yarn_beta_fast": 8.0, "scaling.yarn_beta_slow": 2.0}
    spec = opened_rope(tmp_path, keys).specs["all"]
    assert spec is not None
    assert spec.transform == rj.YaRN(factor=8.0, original_length=4096, beta_fast=8.0, beta_slow=2.0)


def test_llama_3_is_recognised(tmp_path: Path) -> None:
    """The converter's loop in single precision, over the published numbers of Llama 3.1."""
    frequencies = 1 / np.float32(500_000) ** (np.arange(0, 64, 2, dtype=np.float32) / np.float32(64))
    divisors = []
    for wavelength in np.float32(2 * math.pi) / frequencies:
        smooth = (np.float32(8192) / wavelength - np.float32(1)) / np.float32(3)
        middle = 1 / ((1 - smooth) / np.float32(32) + smooth)
        divisors.append(1.0 if wavelength < 8192 / 4 else 32.0 if wavelength > 8192 else middle)
    assert 1 < sum(1 < divisor < 32 for divisor in divisors)
    metadata = {"llama.rope.freq_base": 500_000.0, "llama.context_length": 131_072}
    wide = {"llama.attention.key_length": 64, "llama.attention.value_length": 64, "llama.rope.dimension_count": 64}
    heads = {"llama.attention.head_count": 1, "llama.attention.head_count_kv": 1}
    weights = {name: values for name, values in hugging_face_weights().items() if "_proj" not in name}
    tensors = {FREQS: np.array(divisors, np.float32)}
    path = write_file(tmp_path / "tiny.gguf", weights, metadata=metadata | wide | heads, tensors=tensors)
    assert open_gguf(path).config["rope_parameters"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 500_000.0,
    }


def test_longrope_lists(tmp_path: Path) -> None:
    keys = {"scaling.type": "longrope", "scaling.original_context_length": 512, "scaling.attn_factor": 1.25}
    spec = opened_rope(tmp_path, keys, {SHORT: [1.0] * PAIRS, LONG: DIVISORS}).specs["all"]
    assert spec is not None
    plain = rj.geometric_schedule(HEAD_DIM).float64()
    for length, lists in ((512, [1.0] * PAIRS), (513, DIVISORS)):
        schedule = spec.schedule(length)
        np.testing.assert_allclose(schedule.float64(), plain / lists, rtol=1e-6)
        np.testing.assert_allclose(schedule.attention_scale, 1.25, rtol=1e-6)


REFUSED: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"scaling.alpha": 2.0}, {}, r"`llama.rope.scaling.alpha` must be a rope setting that is read"),
    ({"dimension_sections": [2, 1, 1]}, {}, r"`llama.rope.dimension_sections` must be a rope setting"),
    ({"freq_base_swa": 1e4}, {}, r"`llama.rope.freq_base_swa` must be a rope setting"),
    (
        {"scaling.type": "dynamic"},
        {},
        r"`llama.rope.scaling.type` must be none, linear, yarn or longrope; got 'dynamic'",
    ),
    ({"scaling.yarn_beta_fast": 8.0}, {}, r"`llama.rope.scaling.yarn_beta_fast` must be a rope setting"),
    ({"scaling.yarn_ext_factor": 0.0}, {}, r"`llama.rope.scaling.yarn_ext_factor` must be 1"),
    ({"scaling.yarn_attn_factor": 0.5}, {}, r"`llama.rope.scaling.yarn_attn_factor` must be 1"),
    ({"scaling.yarn_log_multiplier": 0.1}, {}, r"`llama.rope.scaling.yarn_log_multiplier` must be 0"),
    ({"dimension_count": 4}, {}, r"`llama.rope.dimension_count` must be the width of a head, 8"),
    ({"scaling.type": "yarn", "scaling.factor": 2.0}, {FREQS: DIVISORS}, r'"yarn" must go with the tensors \[\]; got'),
    ({"scaling.type": "longrope"}, {SHORT: DIVISORS}, r'"longrope" must go with the tensors'),
    ({}, {LONG: DIVISORS}, r'"linear" must go with the tensors'),
    (
        {"scaling.type": "longrope", "scaling.factor": 4.0},
        {SHORT: DIVISORS, LONG: DIVISORS},
        r"`llama.rope.scaling.factor` must be absent",
    ),
    ({}, {FREQS: DIVISORS[:3]}, r"must have one number for each of 4 rotary pairs; got 3"),
    ({"scaling.factor": 0.5}, {}, r"`rope_parameters.factor` must be at least 1; got 0.5"),
)


@pytest.mark.parametrize(("keys", "tensors", "message"), REFUSED, ids=range(len(REFUSED)))
def test_keys_that_are_not_understood(
    tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        opened_rope(tmp_path, keys, tensors)


WRITTEN: dict[str, tuple[rj.FrequencyTransform, set[str]]] = {
    "plain": (rj.Identity(), set()),
    "another base": (rj.BaseChange(theta=1e6), set()),
    "NTK": (rj.NTKAware(factor=4.0), set()),
    "linear": (rj.PositionInterpolation(factor=4.0), {"scaling.type", "scaling.factor"}),
    "yarn": (
        rj.YaRN(factor=8.0, original_length=512),
        {"scaling.type", "scaling.factor", "scaling.original_context_length"},
    ),
    "yarn of one scale": (
        rj.YaRN(factor=8.0, original_length=512, attention_scale=1.0),
        {"scaling.type", "scaling.factor", "scaling.original_context_length", "scaling.attn_factor"},
    ),
    "yarn without rounding": (
        rj.YaRN(factor=8.0, original_length=512, truncate=False),
        {"scaling.original_context_length", "scaling.attn_factor", FREQS},
    ),
    "yarn of other turns": (
        rj.YaRN(factor=8.0, original_length=512, beta_fast=8.0),
        {"scaling.original_context_length", "scaling.attn_factor", FREQS},
    ),
    "yarn at factor 1": (rj.YaRN(factor=1.0, original_length=512), {"scaling.original_context_length"}),
    "llama3": (
        rj.Llama3(factor=8.0, original_length=512, low_freq_factor=1.0, high_freq_factor=4.0),
        {"scaling.original_context_length", FREQS},
    ),
    "any factors": (rj.Rescale(factors=[1.0, 0.5, 3.0, 9.0]), {FREQS}),
    "linear and a scale": (
        rj.chain(rj.PositionInterpolation(factor=4.0), rj.AttentionTemperature(scale=1.25)),
        {"scaling.type", "scaling.factor", "scaling.attn_factor"},
    ),
    "squeezed": (rj.Rescale(factors=[0.5] * 4), {FREQS}),
}


@pytest.mark.parametrize(("transform", "keys"), WRITTEN.values(), ids=WRITTEN)
def test_llama_cpp_builds_the_same_frequencies(transform: rj.FrequencyTransform, keys: set[str]) -> None:
    spec = rj.RopeSpec(HEAD_DIM, transform=transform)
    metadata = rope_metadata(rj.ModelRope({"all": spec}, ("all",) * 2))
    expected = {key if key == FREQS else f"llama.rope.{key}" for key in keys | {"dimension_count", "freq_base"}}
    assert set(metadata) == expected
    divisors = metadata.pop(FREQS, None)
    inv_freq, scale = llama_cpp(metadata, divisors)
    np.testing.assert_allclose(inv_freq, spec.schedule().float64(), rtol=1e-6)
    np.testing.assert_allclose(scale, spec.schedule().attention_scale, rtol=1e-6)


def test_pairs_that_stand_still() -> None:
    spec = rj.RopeSpec(HEAD_DIM, transform=rj.Proportional(fraction=0.5))
    metadata = rope_metadata(rj.ModelRope({"all": spec}, ("all",) * 2))
    inv_freq, _ = llama_cpp(metadata, metadata.pop(FREQS))
    np.testing.assert_allclose(inv_freq, spec.schedule().float64(), rtol=1e-6, atol=1e-25)


def model(spec: rj.RopeSpec | None, other: rj.RopeSpec | None = None) -> rj.ModelRope:
    groups = ("a",) if other is None else ("a", "b")
    return rj.ModelRope(dict(zip(groups, (spec, other), strict=False)), groups)


LOST: tuple[tuple[rj.ModelRope, str], ...] = (
    (model(rj.RopeSpec(4, head_dim=8)), r"`rotary_dim` must be the head's width 8.*got 4"),
    (model(rj.RopeSpec(8, transform=rj.DynamicNTK(factor=2.0, original_length=64))), "`transform` must be static; got"),
    (model(rj.RopeSpec(8, softmax_scale=2.0)), r"`softmax_scale` must be 1.0; got 2.0, .*it would be lost"),
    (model(rj.RopeSpec(8, query_scale=lambda positions: positions)), "`query_scale` must be None; got"),
    (model(rj.RopeSpec(8, pair_axes=(0, 0, 1, 1))), "`pair_axes` must be None; got"),
    (model(rj.RopeSpec(8), rj.RopeSpec(8, theta=1e6)), r"must turn all layers alike; got groups \['a', 'b'\]"),
    (model(None), "`rope` must turn every layer; got no rotation in the layers 'a'"),
)


@pytest.mark.parametrize(("rope", "message"), LOST, ids=[message[:20] for _, message in LOST])
def test_what_would_be_lost_is_refused(rope: rj.ModelRope, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rope_metadata(rope)


def test_groups_that_turn_alike() -> None:
    both = rope_metadata(model(rj.RopeSpec(8), rj.RopeSpec(8)))
    assert both == {key: SIZES[key] for key in ("llama.rope.dimension_count", "llama.rope.freq_base")}

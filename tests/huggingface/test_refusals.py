"""What is refused, with the key in the message; and what strict=False makes of the doubtful part."""

import math
from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from tests.huggingface.configs import CONFIGS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "head_dim": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 32,
    "long_factor": [2.0] * 32,
    "original_max_position_embeddings": 2048,
}


def scaled(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    kept = {key: value for key, value in (values | changes).items() if value is not ...}
    return LLAMA | {"rope_scaling": kept}


@pytest.mark.parametrize("factor", ["8", 0, -1, math.nan, math.inf, 0.5, True, [2.0]])
@pytest.mark.parametrize(
    "values", [{"rope_type": "linear"}, {"rope_type": "dynamic"}, YARN, LLAMA3, LONG], ids=lambda v: v["rope_type"]
)
def test_factors_that_are_none(values: dict[str, Any], factor: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"`rope_scaling\.factor` must be.*got"):
        rj.from_huggingface(scaled(values, factor=factor))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"num_hidden_layers": 2**31}, "`num_hidden_layers` must be at most 100000; got 2147483648"),
        (LLAMA | {"per_layer_config": {"first": {"head_dim": 8}}}, "`per_layer_config` must map layer numbers"),
        (LLAMA | {"per_layer_config": {"0": 8}}, "`per_layer_config` must map layer numbers to objects; got '0'"),
        (scaled({"type": "foo", "factor": 2.0}), r"`rope_scaling\.rope_type` must be one of.*got 'foo'"),
        (scaled({"rope_type": "yarm"}), 'Did you mean "yarn"'),
        (scaled({"rope_type": 3}), r"`rope_scaling\.rope_type` must be a name"),
        (scaled({"rope_type": "linear"}), r"`rope_scaling\.factor` must be given"),
        (scaled(YARN, attention_factor=0.0), r"`rope_scaling\.attention_factor` must be above 0; got 0\.0"),
        (scaled(YARN, attention_factor=-1.0), r"attention_factor` must be above 0"),
        (scaled(YARN, beta_fast=0), r"`rope_scaling\.beta_fast` must be above 0"),
        (scaled(YARN, beta_fast=1.0, beta_slow=2.0), "`beta_fast` must be above `beta_slow`"),
        (scaled(YARN, truncate="no"), r"`rope_scaling\.truncate` must be true or false"),
        (scaled(YARN, attn_factor=0.9, attention_factor=1.0), "`rope_scaling.attn_factor` must not stand beside"),
        (scaled(YARN, original_max_position_embeddings=2048.5), "must be an integer of at least 1"),
        (scaled(YARN, factor=..., original_max_position_embeddings=8192), "must be at least 1; got 0.5"),
        (scaled(LLAMA3, high_freq_factor=1.0), "`low_freq_factor` must be below `high_freq_factor`"),
        (scaled(LLAMA3, low_freq_factor=...), r"`rope_scaling\.low_freq_factor` must be given"),
        (scaled(LONG, short_factor=[1.0] * 64), r"`rope_scaling\.short_factor` must have one number.*32.*got 64"),
        (scaled(LONG, long_factor=[1.0] * 31), r"`rope_scaling\.long_factor` must have.*got 31"),
        (scaled(LONG, long_factor=[0.0] * 32), r"`rope_scaling\.long_factor\[0\]` must be above 0"),
        (scaled(LONG, long_factor=...), r"`rope_scaling\.long_factor` must be given"),
        (scaled(LONG, long_factor=2.0), r"`rope_scaling\.long_factor` must be a list"),
        (
            scaled(LONG, short_mscale=1.1, long_mscale=1.2),
            "`rope_scaling.short_mscale` and `long_mscale` must be equal",
        ),
        (scaled({"beta_fast": 32, "factor": 2.0}), r"`rope_scaling\.rope_type` must be given beside beta_fast"),
        (scaled({"rope_type": "mrope", "mrope_section": [8, 8, 8]}), r"`rope_scaling\.mrope_section`.*add up to 32"),
        (LLAMA | {"rope_scaling": [1, 2]}, "`rope_scaling` must be an object or null"),
        (LLAMA | {"rope_theta": 1.0}, "`rope_theta` must be above 1"),
        (LLAMA | {"rope_theta": "1e4"}, "`rope_theta` must be a number"),
        (LLAMA | {"rotary_emb_base": 5e5}, "`rope_theta` and `rotary_emb_base` must agree"),
        (LLAMA | {"num_hidden_layers": None}, "`num_hidden_layers` must be given"),
        (LLAMA | {"head_dim": 65}, r"must give whole rotary pairs.*65"),
        (
            LLAMA | {"head_dim": 4, "partial_rotary_factor": 0.75},
            r"`partial_rotary_factor` must give whole.*0\.75 of 4",
        ),
        (LLAMA | {"head_dim": 100, "partial_rotary_factor": 0.29}, "must give whole rotary pairs.*0.29 of 100"),
        (LLAMA | {"partial_rotary_factor": 0}, "`partial_rotary_factor` must be above 0"),
        (LLAMA | {"rotary_dim": 128}, "`rotary_dim` must be at most head_dim 64"),
        (LLAMA | {"rotary_dim": 33}, "`rotary_dim` must be even"),
        (LLAMA | {"head_dim": None, "hidden_size": 520, "num_attention_heads": 7}, "`hidden_size` must be a multiple"),
        (LLAMA | {"layer_types": ["full_attention"]}, "`layer_types` must name the type of each of 2 layers"),
        (LLAMA | {"no_rope_layers": [1]}, "`no_rope_layers` must have one entry for each of 2"),
        (LLAMA | {"no_rope_layers": [3, 7]}, "`no_rope_layers` must be a list of 1"),
        (LLAMA | {"rope_local_base_freq": 1e4}, "`layer_types` must be given"),
        (CONFIGS["deepseek-v2"] | {"partial_rotary_factor": 0.5}, "`partial_rotary_factor` must agree with `qk_rope"),
        (LLAMA | {"model_type": "deepseek_v4"}, "`model_type` must be one whose rotation can be expressed"),
        (
            CONFIGS["gemma-4"] | {"layer_types": ["sliding_attention", "linear_attention"]},
            r"`rope_parameters\.linear_attention` must be given",
        ),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_can_not_be_read(config: dict[str, Any], message: str, strict: bool) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        rj.from_huggingface(config, strict=strict)


DOUBTFUL = (
    (scaled({"rope_type": "default"}, factr=None), r"`rope_scaling\.factr` must be a key.*got None"),
    (scaled(YARN, beta_fats=32), r"`rope_scaling\.beta_fats` must be a key.*got 32.*Did you mean `beta_fast`"),
    (
        scaled({"rope_type": "default"}, factor=2.0),
        r"`rope_scaling\.factor` must be a key of the rope type \"default\"",
    ),
    (scaled(YARN, type="linear"), r"`rope_scaling\.type` and `rope_scaling\.rope_type` must agree; got 'linear'"),
    (scaled(YARN, original_max_position_embeddings=...), r"`rope_scaling\.original_max_position_embeddings` must be"),
    (scaled(LLAMA3, original_max_position_embeddings=...), r"original_max_position_embeddings` must be given"),
    (scaled(YARN, extrapolation_factor=0.5), r"`rope_scaling\.extrapolation_factor` must be 1"),
    (scaled(YARN) | {"original_max_position_embeddings": 1024}, "must agree; got 2048 and 1024"),
    (
        scaled({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048}),
        "must agree for dynamic NTK; got 2048 and 4096",
    ),
    (scaled({"rope_type": "dynamic", "factor": 2.0, "beta_fast": 32}), r"`rope_scaling\.beta_fast` must belong"),
    (scaled(YARN) | {"rope_parameters": {"rope_type": "default"}}, "`rope_scaling` and `rope_parameters` must agree"),
    (LLAMA | {"use_dynamic_ntk": True}, "`use_dynamic_ntk` must be absent"),
    (LLAMA | {"dual_chunk_attention_config": {"chunk_size": 8}}, "`dual_chunk_attention_config` must be absent"),
    ({**LLAMA, "model_type": "foo", "rope_theta": None}, "`rope_theta` must be given for the model type 'foo'"),
    ({**LLAMA, "model_type": "foo", "qk_rope_head_dim": 64}, "`rope_interleave` must be given"),
    (scaled(YARN, mscale_all_dim=1.0) | {"model_type": "foo"}, r"`rope_scaling\.mscale_all_dim` must be absent"),
    (
        CONFIGS["gemma-4"] | {"rope_parameters": CONFIGS["gemma-4"]["rope_parameters"] | {"factor": 2.0}},
        r"`rope_parameters\.factor` must be inside the dict of a layer type",
    ),
)


@pytest.mark.parametrize(("config", "message"), DOUBTFUL)
def test_what_would_have_to_be_guessed_is_refused_or_warned_of(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        rj.from_huggingface(config)
    rope = rj.from_huggingface(config, strict=False)
    assert any(warning in str(caught.value) for warning in rope.warnings)


def test_a_missing_original_length_is_what_other_readers_take_when_asked_to_go_on() -> None:
    rope = rj.from_huggingface(scaled(YARN, original_max_position_embeddings=...), strict=False)
    spec = rope.specs["all"]
    assert spec is not None and spec.transform == rj.YaRN(factor=2.0, original_length=4096)
    assert rope.sources["original_length"] == "max_position_embeddings"


def test_contradicting_dicts_keep_the_old_one_and_the_base_of_the_new_one() -> None:
    config = {**scaled(YARN), "rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    spec = rj.from_huggingface(config, strict=False).specs["all"]
    assert spec is not None and spec.theta == 5e5 and spec.transform == rj.YaRN(factor=2.0, original_length=2048)


def test_a_base_beside_the_dict_does_not_contradict_it() -> None:
    spec = rj.from_huggingface(scaled(YARN) | {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}).specs["all"]
    assert spec is not None and spec.theta == 5e5
    np.testing.assert_allclose(spec.schedule().attention_scale, 0.1 * math.log(2) + 1, rtol=1e-7)

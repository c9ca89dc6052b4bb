"""Configurations as decoders: groups, windows, defaults, and what no decoder has."""

from typing import Any

import pytest

import rope_jax as rj
from rope_jax.huggingface.weights.shape import decoder_config, trained_length
from tests.huggingface.weights.families import CONFIGS


def shape(name: str, **changed: Any) -> Any:
    raw = {key: value for key, value in (CONFIGS[name] | changed).items() if value != "absent"}
    return decoder_config(raw, rj.from_huggingface(raw))


def windows(config: Any) -> list[int | None]:
    return [dict(config.windows).get(group) for group in config.layer_groups]


def test_windows_fall_on_the_layers_that_slide() -> None:
    assert windows(shape("llama")) == [None] * 3
    assert windows(shape("mistral")) == [4] * 3
    assert windows(shape("mistral", sliding_window=None)) == [None] * 3
    assert windows(shape("mistral", sliding_window="absent")) == [4096] * 3
    assert windows(shape("qwen2")) == [None, 4, 4]
    assert windows(shape("qwen2", use_sliding_window=False)) == [None] * 3
    listed = ["sliding_attention", "full_attention", "full_attention"]
    assert windows(shape("qwen2", layer_types=listed)) == [4, None, None]
    assert windows(shape("gemma2")) == [5, None, 5]
    assert windows(shape("gemma2", layer_types=listed)) == [5, None, None]
    assert windows(shape("gemma3")) == [5, 5, None]
    assert windows(shape("smollm3")) == [None] * 3
    assert windows(shape("smollm3", use_sliding_window=True, sliding_window=7)) == [None, 7, None]


def test_groups_are_those_of_the_rope_split_where_windows_differ() -> None:
    assert shape("llama").pattern == ("all",)
    assert shape("qwen2").layer_groups == ("full_attention", "sliding_attention", "sliding_attention")
    assert shape("gemma3").layer_groups == ("sliding_attention", "sliding_attention", "full_attention")
    assert shape("smollm3").layer_groups == ("rope", "nope", "rope")
    listed = ["sliding_attention", "full_attention", "full_attention"]
    split = shape("smollm3", use_sliding_window=True, sliding_window=7, layer_types=listed)
    assert split.layer_groups == ("rope, sliding_attention", "nope", "rope, full_attention")


def test_choices_of_the_families() -> None:
    llama, gemma, olmo = shape("llama-biases"), shape("gemma2"), shape("olmo2")
    assert (llama.bias, llama.head_dim, llama.tied, llama.embed_scale) == (("qkv", "out", "mlp"), 6, False, 1.0)
    assert (gemma.scale, gemma.softcap, gemma.logit_softcap, gemma.embed_scale) == (0.25, 50.0, 30.0, 4.0)
    assert (gemma.activation, gemma.norm_placement, gemma.tied) == ("gelu_tanh", "both", True)
    assert shape("gemma2", attn_logit_softcapping=None).softcap is None
    assert (olmo.qk_norm, olmo.norm_placement, olmo.norm_epsilon) == ("full", "post", 1e-5)
    neox, sequential = shape("gpt-neox"), shape("gpt-neox-sequential")
    assert (neox.norm, neox.gated, neox.activation, neox.bias) == ("layer", False, "gelu", ("qkv", "out", "mlp"))
    assert (neox.parallel, sequential.parallel) == (True, False)
    assert shape("gpt-neox", attention_bias=False).bias == ("mlp",)
    assert (shape("qwen2").bias, shape("qwen3").qk_norm, shape("mistral").kv_heads) == (("qkv",), True, 2)


def test_defaults_are_those_of_the_model_type() -> None:
    # What a published 4B file of Gemma 3 states of its language model.
    sparse = {
        **{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        **{"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    }
    config = decoder_config(sparse, rj.from_huggingface(sparse))
    assert (config.vocab, config.heads, config.kv_heads, config.head_dim) == (262208, 8, 4, 256)
    assert trained_length(sparse) == 131072
    assert windows(config)[:6] == [1024] * 5 + [None]
    bare = shape("llama", num_key_value_heads="absent", vocab_size="absent", max_position_embeddings="absent")
    assert (bare.kv_heads, bare.vocab, bare.norm_epsilon) == (None, 32000, 1e-6)


def test_trained_length_is_the_original_one() -> None:
    assert trained_length(CONFIGS["llama"]) == 32
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    assert trained_length(CONFIGS["llama"] | {"rope_scaling": yarn}) == 16
    nested = {"full_attention": yarn | {"rope_theta": 1e6}, "sliding_attention": {"rope_type": "default"}}
    assert trained_length(CONFIGS["gemma3"] | {"rope_parameters": nested}) == 16
    assert trained_length(CONFIGS["phi3"] | {"original_max_position_embeddings": 8}) == 8
    assert trained_length(CONFIGS["llama"] | {"rope_scaling": yarn, "trained_length": 64}) == 64
    with pytest.raises(ValueError, match="`trained_length` must be an integer of at least 1; got 0"):
        trained_length(CONFIGS["llama"] | {"trained_length": 0})


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        (
            "mistral",
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "`layer_types` must be",
        ),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "alone; got 'chunked_attention'"),
        ("qwen2", {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 3}, "`sliding_window` must be"),
        ("gemma2", {"sliding_window": None}, "`sliding_window` must be given"),
        ("gemma2", {"use_bidirectional_attention": True}, "`use_bidirectional_attention` must be absent"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "`query_pre_attn_scalar` must be a number above 0; got 0"),
        ("gemma2", {"hidden_activation": "selu"}, "`hidden_activation` must be one of"),
        ("gpt-neox", {"head_dim": 6}, "`head_dim` must be"),
        ("llama", {"num_attention_heads": 3}, "must be a multiple"),
        ("llama", {"rms_norm_eps": "1e-6"}, "`rms_norm_eps` must be a number above 0"),
        ("qwen2", {"max_window_layers": "2"}, "`max_window_layers` must be an integer"),
    ],
)
def test_what_no_decoder_has_is_refused_by_key(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape(name, **changed)


def test_switches_are_true_or_false() -> None:
    with pytest.raises(TypeError, match="`tie_word_embeddings` must be true or false; got 'yes'"):
        shape("llama", tie_word_embeddings="yes")

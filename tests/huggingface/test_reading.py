"""Where configurations come from, whose defaults fill them, and what is said about it."""

from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.families import FAMILIES
from tests.huggingface.configs import CONFIGS

BARE: dict[str, Any] = {"head_dim": 64, "num_hidden_layers": 4}


def test_the_language_model_of_a_composite_one() -> None:
    inner = CONFIGS["gemma-3"]
    outer = {"model_type": "gemma3", "vision_config": {"head_dim": 7}, "text_config": inner}
    assert rj.from_huggingface(outer) == rj.from_huggingface(inner)
    lean = {key: value for key, value in CONFIGS["qwen2-vl"].items() if not key.startswith("rope")}
    split = {"model_type": "qwen2_vl", "text_config": lean, "rope_scaling": CONFIGS["qwen2-vl"]["rope_scaling"]}
    assert rj.from_huggingface(split).specs == rj.from_huggingface(CONFIGS["qwen2-vl"]).specs


@pytest.mark.parametrize(
    ("model_type", "theta", "layout", "rotary_dim"),
    [
        ("llama", 10_000.0, "half", 64),
        ("mixtral", 1e6, "half", 64),
        ("cohere", 5e5, "interleaved", 64),
        ("gpt_neox", 10_000.0, "half", 16),
        ("stablelm", 10_000.0, "half", 16),
        ("phi", 10_000.0, "half", 32),
        ("glm4", 10_000.0, "interleaved", 32),
        ("glm4_moe", 10_000.0, "half", 32),
        ("chatglm", 10_000.0, "interleaved", 32),
        ("gptj", 10_000.0, "interleaved", 64),
        ("helium", 1e5, "interleaved", 64),
    ],
)
def test_defaults_of_families(model_type: str, theta: float, layout: str, rotary_dim: int) -> None:
    rope = rj.from_huggingface(BARE | {"model_type": model_type})
    assert rope.specs == {"all": rj.RopeSpec(rotary_dim, theta=theta, layout=layout, head_dim=64)}  # type: ignore[arg-type]
    assert rope.sources["theta"] == f"default of {model_type}"
    assert rope.sources["layout"] == f"default of {model_type}"
    assert rope.sources["head_dim"] == "head_dim"


def test_a_family_whose_default_is_a_scaling() -> None:
    bare = {"model_type": "gpt_oss", "num_hidden_layers": 2, "rope_scaling": None}
    assert rj.from_huggingface(bare).specs == rj.from_huggingface(CONFIGS["gpt-oss"]).specs
    assert rj.from_huggingface(bare).sources["factor"] == "default of gpt_oss: rope_parameters.factor"


def test_model_types_have_one_row() -> None:
    models = [model for row in FAMILIES for model in row.models]
    assert len(models) == len(set(models))


def test_an_unknown_model_type_needs_its_base_only() -> None:
    rope = rj.from_huggingface(BARE | {"model_type": "foo", "rope_theta": 5e5})
    assert rope.specs == {"all": rj.RopeSpec(64, theta=5e5)}
    assert rope.sources["layout"] == "assumed: half, as most checkpoints have it"
    assert rope.warnings == ()


@pytest.mark.parametrize(
    ("config", "theta", "source"),
    [
        ({"rotary_emb_base": 25000}, 25_000.0, "rotary_emb_base"),
        ({"rope_ratio": 500}, 5e6, "10000 x rope_ratio"),
        ({"rope_parameters": {"rope_theta": 3e4}, "rope_theta": None}, 3e4, "rope_parameters.rope_theta"),
    ],
)
def test_spellings_of_the_base(config: dict[str, Any], theta: float, source: str) -> None:
    rope = rj.from_huggingface(BARE | {"model_type": "llama"} | config)
    assert rope.specs["all"] == rj.RopeSpec(64, theta=theta)
    assert rope.sources["theta"] == source


def test_the_inner_base_holds_against_a_stale_outer_one() -> None:
    rope = rj.from_huggingface(
        BARE
        | {"model_type": "llama", "rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    )
    assert rope.specs["all"] == rj.RopeSpec(64, theta=1e6)
    assert len(rope.warnings) == 1 and "rope_theta" in rope.warnings[0]


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        ({"model_type": "deepseek_v3", "rope_interleave": False}, "half"),
        ({"model_type": "deepseek_v3"}, "interleaved"),
        ({"model_type": "nomic_bert", "rotary_emb_interleaved": True}, "interleaved"),
        ({"model_type": "foo", "rope_theta": 1e4, "position_embedding_type": "rope_gptj"}, "interleaved"),
    ],
)
def test_layouts_that_are_stated(config: dict[str, Any], layout: str) -> None:
    spec = rj.from_huggingface(BARE | config).specs["all"]
    assert spec is not None and spec.layout == layout


def test_sources_of_several_groups_name_their_group() -> None:
    sources = rj.from_huggingface(CONFIGS["gemma-3"]).sources
    assert sources["full_attention.theta"] == "rope_theta"
    assert sources["sliding_attention.theta"] == "rope_local_base_freq"
    assert sources["full_attention.factor"] == "rope_scaling.factor"
    lean = {"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 2560}
    sources = rj.from_huggingface(lean).sources
    assert sources["sliding_attention.theta"] == sources["full_attention.head_dim"] == "default of gemma3_text"


def test_every_number_of_a_spec_has_its_source() -> None:
    sources = rj.from_huggingface(CONFIGS["llama-2"] | {"rope_scaling": {"type": "linear", "factor": 2}}).sources
    assert sources == {
        "theta": "default of llama",
        "head_dim": "hidden_size / num_attention_heads",
        "factor": "rope_scaling.factor",
        "layout": "default of llama",
    }


LAYERS = (
    ({"model_type": "smollm3"}, "RRRN"),
    ({"model_type": "smollm3", "no_rope_layer_interval": 2}, "RNRN"),
    ({"model_type": "llama4", "attn_temperature_tuning": False, "no_rope_layers": [0, 1, 1, 1]}, "NRRR"),
    ({"model_type": "cohere2"}, "SSSF"),
    ({"model_type": "cohere2", "sliding_window_pattern": 2}, "SFSF"),
    ({"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}, "SSSF"),
    ({"model_type": "exaone4", "sliding_window": None}, "AAAA"),
    ({"model_type": "olmo3"}, "SSSF"),
    ({"model_type": "modernbert"}, "FSSF"),
    ({"model_type": "falcon", "alibi": True}, "AAAA"),
    ({"model_type": "qwen3", "layer_types": ["sliding_attention", "full_attention"] * 2}, "AAAA"),
)
NAMES = {"R": "rope", "N": "nope", "S": "sliding_attention", "F": "full_attention", "A": "all"}


@pytest.mark.parametrize(("config", "letters"), LAYERS)
def test_layers_that_turn_alike_are_one_group(config: dict[str, Any], letters: str) -> None:
    rope = rj.from_huggingface(BARE | config)
    assert rope.layer_groups == tuple(NAMES[letter] for letter in letters)
    still = {group for group, spec in rope.specs.items() if spec is None}
    nope = {"cohere2": {"full_attention"}, "exaone4": {"full_attention"}, "falcon": {"all"}}
    assert still == (nope.get(config["model_type"], {"nope"}) & set(rope.layer_groups))


def test_a_null_dict_of_a_layer_type_is_no_rotation() -> None:
    types = ["sliding_attention", "full_attention"]
    parameters = {"sliding_attention": {"rope_type": "default", "rope_theta": 5e4}, "full_attention": None}
    config = {"model_type": "foo", "head_dim": 64, "num_hidden_layers": 2, "layer_types": types}
    rope = rj.from_huggingface(config | {"rope_parameters": parameters})
    assert rope.layer_groups == tuple(types)
    assert rope.specs == {"sliding_attention": rj.RopeSpec(64, theta=5e4), "full_attention": None}
    again = rj.from_huggingface(config | rj.to_huggingface(rope))
    assert (again.specs, again.layer_groups) == (rope.specs, rope.layer_groups)


def test_heads_of_two_widths() -> None:
    lean = {key: value for key, value in CONFIGS["gemma-4"].items() if key != "global_head_dim"}
    expected = rj.from_huggingface(CONFIGS["gemma-4"])
    for config in (lean, lean | {"per_layer_config": {"1": {"head_dim": 512}}}):
        assert rj.from_huggingface(config).specs == expected.specs
    mixed = lean | {"num_hidden_layers": 3, "layer_types": [*lean["layer_types"], "full_attention"]}
    with pytest.raises(ValueError, match="`per_layer_config` must give the layers that turn alike heads of one width"):
        rj.from_huggingface(mixed | {"per_layer_config": {"1": {"head_dim": 512}}})


def test_sliding_layers_that_the_scaling_leaves_alone_keep_the_base() -> None:
    kept = {key: value for key, value in CONFIGS["olmo-3"].items() if key not in ("rope_theta", "rope_scaling")}
    flat = kept | {"rope_parameters": CONFIGS["olmo-3"]["rope_scaling"] | {"rope_theta": 3e5}}
    rope = rj.from_huggingface(flat)
    assert rope.specs["sliding_attention"] == rj.RopeSpec(128, theta=3e5)
    full = rope.specs["full_attention"]
    assert full is not None and full.theta == 3e5 and isinstance(full.transform, rj.YaRN)


def test_two_lengths_of_a_file_are_no_contradiction() -> None:
    config = BARE | {"model_type": "qwen", "seq_length": 8192, "max_position_embeddings": 32768}
    spec = rj.from_huggingface(config | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}).specs["all"]
    assert spec is not None and spec.transform == rj.DynamicNTK(factor=2.0, original_length=32768)


def test_widths_of_latent_attention_are_those_of_the_rotated_tensor() -> None:
    config = {"model_type": "mistral4", "num_hidden_layers": 1, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64}
    spec = rj.from_huggingface(config | {"max_position_embeddings": 2**20}).specs["all"]
    assert spec is not None and (spec.rotary_dim, spec.head_dim, spec.layout) == (64, 64, "interleaved")
    np.testing.assert_allclose(spec.softmax_scale, (0.1 * np.log(128) + 1) ** 2, rtol=1e-14)
    half = config | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}
    spec = rj.from_huggingface(half).specs["all"]
    assert spec is not None and spec.rotary_dim == 64


def test_an_export_may_stand_beside_the_old_spelling_of_its_type() -> None:
    """What `config |= to_huggingface(rope)` leaves in a file of Qwen2-VL."""
    old = {"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    old |= {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    rope = rj.from_huggingface(old)
    assert rj.from_huggingface(old | rj.to_huggingface(rope)).specs == rope.specs


@pytest.mark.parametrize(
    ("rope", "origin"),
    [
        ({}, "default of yarn"),
        ({"truncate": None}, "default of yarn"),
        ({"truncate": True}, "rope_parameters.truncate"),
        ({"truncate": False}, "rope_parameters.truncate"),
    ],
)
def test_where_the_rounding_of_yarn_came_from(rope: dict[str, Any], origin: str) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096, **rope}
    assert rj.from_huggingface(BARE | {"model_type": "llama", "rope_parameters": yarn}).sources["truncate"] == origin
    types = ["full_attention", "sliding_attention"] * 2
    nested = dict.fromkeys(types, yarn)
    read = rj.from_huggingface(BARE | {"model_type": "olmo3", "layer_types": types, "rope_parameters": nested})
    inside = origin if origin == "default of yarn" else "rope_parameters.full_attention.truncate"
    assert read.sources["full_attention.truncate"] == inside
    plain = {key: value for key, value in yarn.items() if key != "truncate"}
    outside = dict.fromkeys(types, plain) | {key: value for key, value in rope.items() if value is not None}
    read = rj.from_huggingface(BARE | {"model_type": "olmo3", "layer_types": types, "rope_parameters": outside})
    assert read.sources["full_attention.truncate"] == origin

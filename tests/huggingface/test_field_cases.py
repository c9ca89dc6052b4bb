"""Mistakes that other readers of configurations made, each with the number that tells them apart."""

import copy
import math
from typing import Any

import jax.numpy as jnp
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


def spec_of(config: dict[str, Any], group: str = "all", strict: bool = True) -> rj.RopeSpec:
    spec = rj.from_huggingface(config, strict=strict).specs[group]
    assert spec is not None
    return spec


def scaled(**values: Any) -> dict[str, Any]:
    return LLAMA | {"rope_scaling": values}


def yarn(**values: Any) -> dict[str, Any]:
    return scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024, **values)


def test_rounding_of_the_ramp_follows_the_checkpoint() -> None:
    config = copy.deepcopy(CONFIGS["gpt-oss"])
    unrounded = spec_of(config).schedule().float64()
    np.testing.assert_allclose(unrounded[[9, 12, 17]], [0.0317056962, 0.0067949595, 1.29318701e-4], rtol=5e-9)
    for rounding in ({"truncate": True}, {"truncate": None}):
        rounded = spec_of(config | {"rope_scaling": config["rope_scaling"] | rounding}).schedule().float64()
        np.testing.assert_allclose(rounded[[9, 12, 17]], [0.0316207523, 0.0070157139, 2.27947796e-4], rtol=5e-9)
    nested = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 1,
        "head_dim": 64,
        "layer_types": ["full_attention"],
        "rope_parameters": {"full_attention": config["rope_scaling"] | {"rope_theta": 150000}},
    }
    np.testing.assert_array_equal(spec_of(nested, "full_attention").schedule().float64(), unrounded)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ({}, 1.138629436111989),
        ({"attention_factor": None}, 1.138629436111989),
        ({"attention_factor": 1.0}, 1.0),
        ({"attention_factor": 1}, 1.0),
        # A multiplier of the formula, not a value for it: the published one undoes it.
        ({"attn_factor": 0.8782488562869419}, 1.0),
        ({"mscale": 0.707}, 1 + 0.0707 * math.log(4)),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0}, 1.138629436111989),
    ],
)
def test_scale_on_cos_and_sin(values: dict[str, Any], scale: float) -> None:
    np.testing.assert_allclose(spec_of(yarn(**values)).schedule().attention_scale, scale, rtol=1e-7)


def test_an_explicit_factor_is_not_overruled_by_lengths() -> None:
    config = CONFIGS["qwen2.5-yarn"] | {"max_position_embeddings": 40960}
    rope = rj.from_huggingface(config)
    schedule = spec_of(config).schedule()
    np.testing.assert_allclose(schedule.float64()[[40, 63]], [4.44569853e-5, 3.10234440e-7], rtol=5e-9)
    np.testing.assert_allclose(schedule.attention_scale, 1.13862944, rtol=1e-7)
    assert any("40960" in warning and "131072" in warning for warning in rope.warnings)
    assert rope.sources["factor"] == "rope_scaling.factor"


@pytest.mark.parametrize("absent", [{}, {"factor": None}])
def test_a_factor_that_is_absent_is_the_ratio_of_the_lengths(absent: dict[str, Any]) -> None:
    config = scaled(rope_type="yarn", original_max_position_embeddings=1024, **absent)
    assert spec_of(config).transform == rj.YaRN(factor=4.0, original_length=1024)
    source = rj.from_huggingface(config).sources["factor"]
    assert source == "max_position_embeddings / original_max_position_embeddings"


def test_llama_3_reads_its_own_factor() -> None:
    last = []
    for factor in (4, 8.0, 16, 32.0):
        config = copy.deepcopy(CONFIGS["llama-3.2-1b"])
        config["rope_scaling"]["factor"] = factor
        last.append(spec_of(config).schedule().float64()[-1] * factor)
    np.testing.assert_allclose(last, [500000 ** (-31 / 32)] * 4, rtol=1e-14)


@pytest.mark.parametrize(("longest", "scale"), [(131072, 1.1902380714238083), (4096, 1.0), (2048, 1.0)])
def test_scale_of_longrope_is_at_least_one(longest: int, scale: float) -> None:
    config = CONFIGS["phi-4-mini"] | {"max_position_embeddings": longest}
    for length in (10, 4096, 5000):
        np.testing.assert_allclose(spec_of(config).schedule(length).attention_scale, scale, rtol=1e-7)
    assert any("2048" in warning for warning in rj.from_huggingface(config).warnings) == (longest == 2048)


@pytest.mark.parametrize("kind", [{"type": "su"}, {"type": "yarn"}, {"type": "su", "rope_type": "longrope"}])
def test_old_names_of_longrope(kind: dict[str, str]) -> None:
    lists = {key: CONFIGS["phi-4-mini"]["rope_scaling"][key] for key in ("short_factor", "long_factor")}
    assert spec_of(CONFIGS["phi-4-mini"] | {"rope_scaling": kind | lists}) == spec_of(CONFIGS["phi-4-mini"])


def test_one_scale_per_list_where_both_are_equal() -> None:
    config = copy.deepcopy(CONFIGS["phi-4-mini"])
    config["rope_scaling"] |= {"short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122}
    np.testing.assert_allclose(spec_of(config).schedule(4097).attention_scale, 1.243163121016122, rtol=1e-7)
    assert spec_of(config).schedule(4097).float64()[-1] < spec_of(config).schedule(4096).float64()[-1]


def test_lists_follow_the_rotary_width() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = CONFIGS["phi-4-mini"] | {"head_dim": 128, "partial_rotary_factor": 0.75, "rope_scaling": scaling}
    assert (spec_of(config).rotary_dim, spec_of(config).head_dim) == (96, 128)
    with pytest.raises(ValueError, match=r"48.*got 64"):
        rj.from_huggingface(config | {"rope_scaling": scaling | {"short_factor": [1.0] * 64}})


def test_a_partial_width_stays_what_it_is_however_often_it_is_written() -> None:
    config = LLAMA | {"head_dim": 128, "partial_rotary_factor": 0.5}
    for _ in range(3):
        assert spec_of(config).rotary_dim == 64
        config = config | rj.to_huggingface(rj.from_huggingface(config))


def test_odd_heads_may_turn_in_part() -> None:
    assert spec_of(LLAMA | {"head_dim": 5, "rotary_dim": 4}).rotary_dim == 4


def test_two_kinds_of_layers() -> None:
    old = rj.from_huggingface(CONFIGS["gemma-3"])
    kept = {key: value for key, value in CONFIGS["gemma-3"].items() if not key.startswith("rope")}
    types = list(old.layer_groups)
    nested = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    flat = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    for parameters in (nested, flat):
        new = rj.from_huggingface(kept | {"layer_types": types, "rope_parameters": parameters})
        assert (new.specs, new.layer_groups) == (old.specs, old.layer_groups)
    assert old.layer_groups == ("sliding_attention",) * 5 + ("full_attention",)


ALIKE = (
    {"type": "linear", "factor": 2},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "rope_type": "linear", "factor": 2.0, "rope_theta": None},
    {"factor": 2.0},
)


@pytest.mark.parametrize("values", ALIKE)
def test_spellings_of_one_scaling(values: dict[str, Any]) -> None:
    assert spec_of(scaled(**values)).transform == rj.PositionInterpolation(factor=2)
    assert bool(rj.from_huggingface(scaled(**values)).warnings) == (values == {"factor": 2.0})


@pytest.mark.parametrize(
    "values", [None, {}, {"rope_type": "default"}, {"type": "default", "factor": None}, {"rope_theta": 1e4}]
)
def test_spellings_of_no_scaling(values: Any) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        assert spec_of(LLAMA | {key: values}) == rj.RopeSpec(64, theta=1e4)


TYPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "hunyuan": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 2048},
    "dynamic-yarn": {"original_max_position_embeddings": 2048},
    "longrope": {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": 2048},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "proportional": {"partial_rotary_factor": 0.5},
    "ntk": {"factor": 4.0},
}


@pytest.mark.parametrize("name", TYPES)
def test_every_type_reaches_the_rotation(name: str) -> None:
    spec = spec_of(scaled(**({"rope_type": name} | TYPES[name])))
    positions = np.array([[20_000]])
    x = jnp.ones((1, 1, 1, 64))
    plain = rj.rotate(x, rj.rotary_table(rj.geometric_schedule(64), positions))
    turned = rj.rotate(x, rj.rotary_table(spec.schedule(20_001), positions))
    assert np.max(np.abs(turned - plain)) > 0.1


def test_a_fixed_alpha_is_static() -> None:
    spec = spec_of(scaled(**TYPES["hunyuan"]))
    assert spec.transform == rj.NTKAware(factor=1000.0)
    base = 10_000.0 * 1000.0 ** (64 / 62)
    np.testing.assert_allclose(spec.schedule().float64(), rj.geometric_schedule(64, theta=base).float64(), rtol=1e-12)


def test_the_later_ntk_forms() -> None:
    """Printed for width 8: all pairs by factor^(m/n), and by factor^((m/n)^0.625)."""
    config = LLAMA | {"head_dim": 8, "rope_scaling": {"rope_type": "ntk", "factor": 4.0}}
    expected = [0.7071067812, 0.05, 0.003535533906, 0.00025]
    np.testing.assert_allclose(spec_of(config).schedule().float64(), expected, rtol=1e-9)
    config["rope_scaling"]["mixed_b"] = 0.625
    expected = [0.558296565, 0.0407016855, 0.00314063372, 0.00025]
    np.testing.assert_allclose(spec_of(config).schedule().float64(), expected, rtol=2e-9)


def test_the_dict_is_neither_changed_nor_kept() -> None:
    config = copy.deepcopy(CONFIGS["phi-4-mini"])
    rope = rj.from_huggingface(config)
    assert config == CONFIGS["phi-4-mini"]
    config["rope_scaling"]["long_factor"][0] = 99.0
    config["rope_theta"] = 1.5
    assert rope == rj.from_huggingface(CONFIGS["phi-4-mini"])
    exported = rj.to_huggingface(rope)
    exported["rope_parameters"]["long_factor"][0] = 99.0
    assert rj.to_huggingface(rope) != exported

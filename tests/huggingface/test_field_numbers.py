"""The numbers that reports of wrong rotations state, out of the configurations that led to them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests.huggingface.configs import CONFIGS

LLAMA: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 4096}
LISTS = {"rope_type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 4, 8]}


def spec_of(config: dict[str, Any], group: str = "all") -> rj.RopeSpec:
    spec = rj.from_huggingface(LLAMA | config).specs[group]
    assert spec is not None
    return spec


def frequencies(config: dict[str, Any], group: str = "all", length: int | None = None) -> np.ndarray:
    return np.asarray(spec_of(config, group).schedule(length).float64())


def plain(width: int, theta: float) -> np.ndarray:
    return theta ** (-2 * np.arange(width // 2) / width)


def rotated(spec: rj.RopeSpec, x: Any, position: int) -> np.ndarray:
    table = rj.rotary_table(spec.schedule(position + 1 if spec.needs_length else None), np.array([[position]]))
    return np.asarray(rj.rotate(x[None, None, None], table, layout=spec.layout))[0, 0, 0]


@pytest.mark.parametrize("model", ["gpt_oss", "llama"])
def test_rounding_moves_only_the_pairs_between(model: str) -> None:
    stated = {key: value for key, value in CONFIGS["gpt-oss"]["rope_scaling"].items() if key != "truncate"}
    config = {"model_type": model, "head_dim": 64, "rope_theta": 150000}
    unrounded = frequencies(config | {"rope_scaling": stated | {"truncate": False}})
    np.testing.assert_allclose(unrounded[[9, 12, 17]], [0.0317056962, 0.0067949595, 1.29318701e-4], rtol=5e-9)
    for rounded in (frequencies(config | {"rope_scaling": stated | more}) for more in ({}, {"truncate": True})):
        np.testing.assert_allclose(rounded[[9, 12, 17]], [0.0316207523, 0.0070157139, 2.27947796e-4], rtol=5e-9)
        for got in (unrounded, rounded):
            np.testing.assert_allclose(got[:9], plain(64, 150000)[:9], rtol=1e-14)
            np.testing.assert_allclose(got[18:], plain(64, 150000)[18:] / 32, rtol=1e-14)


def test_yarn_blends_frequencies_of_the_original_base() -> None:
    yarn = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 2048, "beta_fast": 32, "beta_slow": 1}
    config = {"head_dim": 128, "rope_theta": 1e4, "max_position_embeddings": 8192, "rope_scaling": yarn}
    got, ratio = frequencies(config), frequencies(config) / plain(128, 1e4)
    np.testing.assert_allclose(got[[0, 16, 20, 32, 63]], [1, 0.1, 0.0494860366, 0.0052, 2.88695496e-5], rtol=5e-9)
    np.testing.assert_allclose(ratio[:17], 1, rtol=1e-14)
    np.testing.assert_allclose(ratio[41:], 0.25, rtol=1e-14)
    assert np.all(np.diff(ratio[16:42]) < 0)
    swapped = {"rope_scaling": yarn | {"beta_fast": 1, "beta_slow": 32}}
    with pytest.raises(ValueError, match="`beta_fast` must be above `beta_slow`"):
        rj.from_huggingface(LLAMA | config | swapped)


def test_static_yarn_holds_at_every_length() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {"head_dim": 128, "rope_theta": 1e6, "max_position_embeddings": 40960, "rope_scaling": yarn}
    for length in (None, 1, 32768, 40961, 10**6):
        np.testing.assert_allclose(
            frequencies(config, length=length)[[40, 63]], [4.44569853e-5, 3.1023444e-7], rtol=5e-9
        )
        np.testing.assert_allclose(spec_of(config).schedule(length).attention_scale, 1.13862944, rtol=1e-7)


@pytest.mark.parametrize(
    ("width", "factor", "kept", "interpolated", "stated"),
    [
        (64, 32, 15, 18, {15: 0.00129054793, 16: 4.29556797e-4, 17: 9.70828780e-5, 31: 9.41830673e-8}),
        (64, 8, 15, 18, {31: 3.76732269e-7}),
        (128, 8, 29, 35, {29: 0.00216657076}),
    ],
)
def test_bands_of_llama_3(width: int, factor: int, kept: int, interpolated: int, stated: dict[int, float]) -> None:
    scaling = CONFIGS["llama-3.2-1b"]["rope_scaling"] | {"factor": factor}
    config = {"head_dim": width, "rope_theta": 5e5, "max_position_embeddings": 131072, "rope_scaling": scaling}
    got = frequencies(config)
    np.testing.assert_allclose(got[list(stated)], list(stated.values()), rtol=5e-9)
    ratio = got / plain(width, 5e5)
    np.testing.assert_allclose(ratio[:kept], 1, rtol=1e-14)
    np.testing.assert_allclose(ratio[interpolated:], 1 / factor, rtol=1e-14)
    assert np.all((1 / factor < ratio[kept:interpolated]) & (ratio[kept:interpolated] < 1))
    assert float(spec_of(config).schedule().attention_scale) == 1.0


def test_longrope_in_small() -> None:
    config = {"head_dim": 8, "max_position_embeddings": 64, "original_max_position_embeddings": 16}
    for length, expected in ((16, [1, 0.1, 0.01, 0.001]), (17, [1, 0.05, 0.0025, 0.000125])):
        np.testing.assert_allclose(frequencies(config | {"rope_scaling": LISTS}, length=length), expected, rtol=1e-14)
        scale = spec_of(config | {"rope_scaling": LISTS}).schedule(length).attention_scale
        np.testing.assert_allclose(scale, 1.22474487, rtol=1e-7)
        for explicit in (1.0, 1.5):
            given = spec_of(config | {"rope_scaling": LISTS | {"attention_factor": explicit}})
            assert float(given.schedule(length).attention_scale) == explicit
    with pytest.raises(ValueError, match=r"`rope_scaling\.factor` must be at least 1; got 0\.5"):
        rj.from_huggingface(LLAMA | config | {"rope_scaling": LISTS | {"factor": 0.5}})


@pytest.mark.parametrize(("short", "long"), [(64, 64), (64, 48), (48, 64), (48, 47)])
def test_lists_of_another_width(short: int, long: int) -> None:
    lists = {"type": "longrope", "short_factor": [1.0] * short, "long_factor": [2.0] * long}
    config = CONFIGS["phi-4-mini"] | {"head_dim": 128, "partial_rotary_factor": 0.75, "rope_scaling": lists}
    with pytest.raises(
        ValueError, match=rf"_factor` must have one number for each of 48.*got {long if short == 48 else 64}"
    ):
        rj.from_huggingface(config)


def test_channels_that_pass_through_keep_their_bits() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal(128), jnp.float32)
    lists = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "attention_factor": 1.5}
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    for scaling, scale in ((lists, 1.5), (yarn, 1.13862944)):
        config = {"head_dim": 128, "partial_rotary_factor": 0.75, "rope_scaling": scaling}
        got = rotated(spec_of(config | {"original_max_position_embeddings": 1024}), x, 5000)
        np.testing.assert_array_equal(got[96:], x[96:])
        lengths = np.hypot(got[:48], got[48:96]) / np.hypot(x[:48], x[48:96])
        np.testing.assert_allclose(lengths, scale, rtol=1e-6)


def test_a_partial_rotation_by_hand() -> None:
    x, expected = jnp.arange(1.0, 9.0), [-3.144039, 1.919605, -0.339143, 4.039197, 5, 6, 7, 8]
    config = {"head_dim": 8, "partial_rotary_factor": 0.5}
    np.testing.assert_allclose(rotated(spec_of(config), x, 2), expected, atol=1e-6)
    neox = {"model_type": "gpt_neox", "hidden_size": 32, "num_attention_heads": 4, "rotary_pct": 0.5}
    np.testing.assert_allclose(rotated(spec_of(neox), x, 2), expected, atol=1e-6)
    scaling = {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    other = spec_of({"head_dim": 8, "rope_scaling": scaling})
    assert other.rotary_dim == 8
    np.testing.assert_allclose(other.schedule().float64(), [1, 0.1, 0, 0], rtol=1e-14)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        *(({"head_dim": width}, str(width)) for width in (65, 3, 33)),
        *(({"head_dim": 130, "rotary_dim": width}, str(width)) for width in (0, 65, 33, 260)),
        ({"hidden_size": 520, "num_attention_heads": 8}, "65"),
        ({"hidden_size": 522, "num_attention_heads": 8}, "522 and 8"),
        ({"head_dim": 100, "partial_rotary_factor": 0.29}, r"0\.29 of 100"),
    ],
)
def test_widths_that_are_no_whole_pairs(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"`.*` must .*got.*\b{named}\b"):
        rj.from_huggingface(LLAMA | config)


def test_local_and_global_angles() -> None:
    for group, first, last in (("sliding_attention", 8000, 1.07460783e-4), ("full_attention", 1000, 1.39246732e-7)):
        got = frequencies(CONFIGS["gemma-3"], group)
        np.testing.assert_allclose([8000 * got[0], got[-1]], [first, last], rtol=5e-9)
        turned = rotated(spec_of(CONFIGS["gemma-3"], group), jnp.zeros(256).at[0].set(1.0), 8000)
        np.testing.assert_allclose(turned[[0, 128]], [np.cos(first), np.sin(first)], atol=1e-6)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 8},
        {"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4, "factor": 8},
        {"type": "yarn", "factor": 8, "truncate": True, "mscale": 1, "mscale_all_dim": 0.5, "beta_fast": 16},
        {"type": "su", "factor": 8, "short_factor": [1] * 4, "long_factor": [2] * 4},
    ],
    ids=lambda scaling: scaling.get("type", scaling.get("rope_type")),
)
def test_valid_files_are_read_without_a_warning(scaling: dict[str, Any]) -> None:
    lengths = {} if scaling.get("rope_type") == "linear" else {"original_max_position_embeddings": 1024}
    config = LLAMA | {"head_dim": 8, "max_position_embeddings": 8192}
    whole, real = (
        rj.from_huggingface(config | {"rope_scaling": scaling | lengths | {"factor": kind(8)}}) for kind in (int, float)
    )
    assert whole == real and whole.warnings == () and whole.sources["factor"] == "rope_scaling.factor"

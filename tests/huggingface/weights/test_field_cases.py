"""Mistakes that right frequencies do not rule out: whole checkpoints, told apart by their logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import Pretrained
from tests.huggingface.weights.families import random_model, write_config

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

from safetensors.numpy import load_file, save_file

POSITIONS = np.array([[0, 1, 2, 3, 700, 1999, 9000, 9001, 19998, 20000]])
SHORT = np.arange(10)[None]
IDS = np.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
LISTS = {
    "partial_rotary_factor": 0.75,
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0, 1.0],
    "long_factor": [1.0, 3.0, 9.0],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8}

Read = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pretrained]:
    """A checkpoint of a family, its configuration changed on disk, and its tensors by a function of name and array."""

    def made(name: str, scaling: Any = None, tensors: Any = None, **changed: Any) -> Pretrained:
        folder: Path = tmp_path_factory.mktemp("checkpoint")
        base = {"rotary_emb_base" if name == "gpt-neox" else "rope_theta": 100.0}
        wide: dict[str, Any] = {} if name == "gemma3" else {"hidden_size": 32, **base}
        rj.save_pretrained(random_model(name, **wide), folder)
        if scaling is not None:
            changed = {"rope_parameters": "absent", "rope_scaling": scaling, **base, **changed}
        write_config(folder, **changed)
        if tensors is not None:
            path = folder / "model.safetensors"
            save_file({key: tensors(key, tensor) for key, tensor in load_file(path).items()}, path)
        loaded: Pretrained = rj.load_pretrained(folder)
        return loaded

    return made


@pytest.fixture(scope="module")
def read(load: Callable[..., Pretrained]) -> Read:
    """Logits of that checkpoint, as multiples of what they spread over."""

    def logits(*model: Any, positions: np.ndarray = POSITIONS, **changes: Any) -> np.ndarray:
        found = np.asarray(load(*model, **changes).logits(IDS, positions=positions))
        return found / np.ptp(found)

    return logits


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.max(np.abs(one - other)))


SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": YARN,
    "yarn, scale of one": YARN | {"attention_factor": 1.0},
    "dynamic-yarn": {"original_max_position_embeddings": 64},
    "longrope": {
        "short_factor": [1.0] * 4,
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": 64,
    },
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "proportional": {"partial_rotary_factor": 0.5},
    "ntk": {"factor": 4.0},
}


@pytest.fixture(scope="module")
def unscaled(read: Read) -> np.ndarray:
    return read("llama", {"rope_type": "default"})


@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling_reaches_the_logits(name: str, read: Read, unscaled: np.ndarray) -> None:
    scaling = {"rope_type": name.partition(",")[0], **SCALINGS[name]}
    assert apart(read("llama", scaling)[0, -1], unscaled[0, -1]) > 1e-3


def test_no_scaling_however_it_is_spelled(read: Read, load: Callable[..., Pretrained]) -> None:
    plain = read("llama")
    for scaling in ({}, {"rope_type": "default"}, {"type": "default", "factor": None}):
        np.testing.assert_array_equal(read("llama", scaling), plain)
    with pytest.raises(ValueError, match=r"`rope_scaling\.rope_type` must be one of.*got 'foo'"):
        load("llama", {"type": "foo", "factor": 2.0})


def test_position_streams_turn_their_own_pairs(load: Callable[..., Pretrained], read: Read) -> None:
    model = load("llama", {"type": "mrope", "mrope_section": [2, 1, 1]})
    assert model.decoder.config.pair_axes == (0, 0, 1, 2)
    plain = np.asarray(model.logits(IDS, positions=SHORT))
    np.testing.assert_array_equal(plain / np.ptp(plain), read("llama", positions=SHORT))
    alike = np.broadcast_to(SHORT, (3, 1, 10))
    np.testing.assert_allclose(model.logits(IDS, SHORT, streams=alike), plain, atol=1e-5)
    moved = np.asarray(model.logits(IDS, SHORT, streams=alike * np.array([1, 3, 1])[:, None, None]))
    assert apart(moved, plain) > 1e-3
    row = model.logits(IDS[0], streams=(alike * np.array([1, 3, 1])[:, None, None])[:, 0])
    np.testing.assert_allclose(row, moved[0], atol=1e-5)
    with pytest.raises(ValueError, match="`streams` must be"):
        model.logits(IDS, SHORT, streams=alike[:2])


def test_spellings_of_one_scaling(read: Read) -> None:
    first = read("llama", {"type": "linear", "factor": 2})
    for scaling in ({"rope_type": "linear", "factor": 2.0}, {"type": "linear", "rope_type": "linear", "factor": 2.0}):
        np.testing.assert_array_equal(read("llama", scaling), first)
        new = {"rope_parameters": scaling | {"rope_theta": 100.0}}
        np.testing.assert_array_equal(read("llama", **new), first)


def test_rounding_reaches_the_logits(read: Read) -> None:
    scaling = YARN | {"factor": 16.0}
    absent, rounded, unrounded = (
        read("llama", scaling | more) for more in ({}, {"truncate": True}, {"truncate": False})
    )
    np.testing.assert_array_equal(absent, rounded)
    assert apart(rounded, unrounded) > 1e-3


def test_llama_3_answers_to_its_factor(read: Read) -> None:
    found = [
        read("llama", {"rope_type": "llama3", **SCALINGS["llama3"], "factor": factor}) for factor in (4.0, 8, 16.0, 32)
    ]
    assert min(apart(one, other) for i, one in enumerate(found) for other in found[:i]) > 1e-3


def test_static_yarn_holds_for_short_texts_and_whatever_the_file_claims(read: Read) -> None:
    plain, scaled = (read("llama", scaling, positions=SHORT) for scaling in ({}, YARN))
    assert apart(plain, scaled) > 1e-3
    np.testing.assert_array_equal(scaled, read("llama", YARN, positions=SHORT, max_position_embeddings=80))


def test_an_explicit_attention_factor_holds(read: Read) -> None:
    formula = 0.1 * np.log(4) + 1
    absent = read("llama", YARN)
    np.testing.assert_array_equal(read("llama", YARN | {"attention_factor": None}), absent)
    np.testing.assert_allclose(read("llama", YARN | {"attention_factor": float(formula)}), absent, atol=1e-6)
    one = read("llama", YARN | {"attention_factor": 1.0})
    assert apart(one, absent) > 1e-3
    np.testing.assert_array_equal(read("llama", YARN | {"attn_factor": 1 / formula}), one)
    with pytest.raises(ValueError, match=r"`rope_scaling\.attention_factor` must be above 0; got 0\.0"):
        read("llama", YARN | {"attention_factor": 0.0})


@pytest.mark.parametrize(
    ("name", "scaled"), [("llama", ("q_proj", "k_proj")), ("qwen3", ("q_norm", "k_norm"))], ids=["llama", "qwen3"]
)
def test_the_factor_multiplies_queries_and_keys_after_their_norm(
    name: str, scaled: tuple[str, ...], read: Read
) -> None:
    def grown(key: str, tensor: np.ndarray) -> np.ndarray:
        return tensor * np.float32(1.5) if any(part in key for part in scaled) else tensor

    one, given = (read(name, YARN | {"attention_factor": factor}) for factor in (1.0, 1.5))
    np.testing.assert_allclose(given, read(name, YARN | {"attention_factor": 1.0}, grown), atol=1e-5)
    assert apart(one, given) > 1e-3


def test_the_factor_leaves_channels_alone_that_pass_through(read: Read) -> None:
    def grown(key: str, tensor: np.ndarray) -> np.ndarray:
        """Queries and keys of 4 heads of 8 channels, of which 4 turn."""
        if "query_key_value" not in key:
            return tensor
        rows = tensor.reshape(4, 3, 8, -1).copy()
        rows[:, :2, :4] *= 1.5
        return rows.reshape(tensor.shape)

    one, given = ({**YARN, "attention_factor": factor, "partial_rotary_factor": 0.5} for factor in (1.0, 1.5))
    np.testing.assert_allclose(read("gpt-neox", given), read("gpt-neox", one, grown), atol=1e-5)
    assert apart(read("gpt-neox", one), read("gpt-neox", given)) > 1e-3


@pytest.mark.parametrize("name", ["gpt-neox", "phi3"])
def test_a_partial_rotation_turns_the_first_channels_alone(name: str, load: Callable[..., Pretrained]) -> None:
    model = load(name)
    (spec,) = model.rope.specs.values()
    schedule = model.schedules()["all"]
    assert spec is not None and schedule is not None
    assert (spec.rotary_dim, spec.head_dim) == ({"gpt-neox": 4, "phi3": 6}[name], 8)
    block = jax.tree.map(lambda leaf: leaf[0], model.decoder.blocks)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 10, 32)), jnp.float32)
    table = rj.rotary_table(schedule, jnp.asarray(POSITIONS, jnp.int32))
    for part in block.attention.project(x)[:2]:
        turned = np.asarray(rj.rotate(part, table, layout=spec.layout))
        np.testing.assert_array_equal(turned[..., spec.rotary_dim :], part[..., spec.rotary_dim :])
        half = spec.rotary_dim // 2
        angles = POSITIONS[0, :, None, None] * spec.theta ** (-np.arange(half) / half)
        first, second = (np.asarray(part[0, ..., at : at + half], np.float64) for at in (0, half))
        expected = first * np.cos(angles) - second * np.sin(angles)
        np.testing.assert_allclose(turned[0, ..., :half], expected, atol=1e-5)


def test_the_amplitude_of_longrope_holds_with_the_short_list_too(read: Read) -> None:
    lengths = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    default = {"rope_type": "default", "partial_rotary_factor": 0.75}
    plain, short = (read("phi3", scaling, positions=SHORT, **lengths) for scaling in (default, LISTS))
    assert apart(plain, short) > 1e-3
    stated = read("phi3", LISTS | {"attention_factor": 1.1902380714238083}, positions=SHORT, **lengths)
    np.testing.assert_allclose(short, stated, atol=1e-6)
    for one in ({**lengths, "max_position_embeddings": 2048}, {**lengths, "max_position_embeddings": 4096}):
        np.testing.assert_allclose(read("phi3", LISTS, positions=SHORT, **one), plain, atol=1e-6)


def test_lists_and_widths_are_refused_before_a_weight_is_read(load: Callable[..., Pretrained]) -> None:
    lists = LISTS | {"short_factor": [1.0] * 4, "original_max_position_embeddings": 64}
    with pytest.raises(ValueError, match=r"short_factor` must have one number for each of 3 rotary pairs; got 4"):
        load("phi3", lists)
    for width in (65, 3):
        with pytest.raises(ValueError, match=rf"`head_dim` must give whole rotary pairs; got .* {width} channels"):
            load("llama", head_dim=width)


def test_local_and_global_layers_keep_their_own_rotation(load: Callable[..., Pretrained]) -> None:
    """Two sliding layers with a base of their own and no scaling, then one that is scaled."""
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_parameters": "absent", "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling}
    nested = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {**scaling, "rope_theta": 1e6},
    }
    model, other = load("gemma3", **old), load("gemma3", rope_parameters=nested)
    assert model.decoder.config.layer_groups == ("sliding_attention",) * 2 + ("full_attention",)
    inv_freq = {group: schedule.float64() for group, schedule in model.schedules().items() if schedule is not None}
    np.testing.assert_allclose(inv_freq["sliding_attention"], 1e4 ** (-np.arange(4) / 4), rtol=1e-14)
    np.testing.assert_allclose(inv_freq["full_attention"], 1e6 ** (-np.arange(4) / 4) / 8, rtol=1e-14)
    logits = model.logits(IDS, positions=POSITIONS)
    np.testing.assert_array_equal(logits, other.logits(IDS, positions=POSITIONS))
    local, scaled = model.rope.specs["sliding_attention"], model.rope.specs["full_attention"]
    for wrong in ((local, local), (scaled, scaled), (scaled, local)):
        specs = dict(zip(("sliding_attention", "full_attention"), wrong, strict=True))
        found = model.logits(IDS, positions=POSITIONS, rope=rj.ModelRope(specs, model.rope.layer_groups))
        assert apart(np.asarray(found), np.asarray(logits)) > 1e-3 * np.ptp(logits)

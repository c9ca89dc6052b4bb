"""The names, shapes and arrangement of tensors that each family has on disk, written out."""

from pathlib import Path

import numpy as np
import pytest

import rope_jax as rj
from tests.huggingface.weights.families import parameters, random_model

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

from safetensors.numpy import load_file, save_file

_ATTENTION = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj"
_MLP = "mlp.gate_proj mlp.up_proj mlp.down_proj"
_NORMS = "input_layernorm post_attention_layernorm"
_QK = "self_attn.q_norm self_attn.k_norm"
_SANDWICH = f"{_NORMS} pre_feedforward_layernorm post_feedforward_layernorm"
_ENDS = "embed_tokens norm"
# Family: what lies outside of layers, then inside of each; all with a weight, and with a bias where it is in the third.
NAMES = {
    "llama": (_ENDS, f"{_ATTENTION} {_MLP} {_NORMS}", "", "lm_head"),
    "llama-biases": (_ENDS, f"{_ATTENTION} {_MLP} {_NORMS}", f"{_ATTENTION} {_MLP}", "lm_head"),
    "mistral": (_ENDS, f"{_ATTENTION} {_MLP} {_NORMS}", "", "lm_head"),
    "qwen2": (_ENDS, f"{_ATTENTION} {_MLP} {_NORMS}", _ATTENTION.rpartition(" ")[0], "lm_head"),
    "qwen3": (_ENDS, f"{_ATTENTION} {_QK} {_MLP} {_NORMS}", "", ""),
    "phi3": (_ENDS, f"self_attn.qkv_proj self_attn.o_proj mlp.gate_up_proj mlp.down_proj {_NORMS}", "", "lm_head"),
    "gemma2": (_ENDS, f"{_ATTENTION} {_MLP} {_SANDWICH}", "", ""),
    "gemma3": (_ENDS, f"{_ATTENTION} {_QK} {_MLP} {_SANDWICH}", "", ""),
    "smollm3": (_ENDS, f"{_ATTENTION} {_MLP} {_NORMS}", "", ""),
    "olmo2": (
        _ENDS,
        f"{_ATTENTION} {_QK} {_MLP} post_attention_layernorm post_feedforward_layernorm",
        _ATTENTION,
        "lm_head",
    ),
    "gpt-neox": (
        "embed_in final_layer_norm",
        f"attention.query_key_value attention.dense mlp.dense_h_to_4h mlp.dense_4h_to_h {_NORMS}",
        f"attention.query_key_value attention.dense mlp.dense_h_to_4h mlp.dense_4h_to_h {_NORMS}",
        "embed_out",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_tensors_have_the_published_names(name: str, tmp_path: Path) -> None:
    outside, inside, biased, head = NAMES[name]
    model = "gpt_neox" if name == "gpt-neox" else "model"
    expected = {f"{model}.{part}.weight" for part in outside.split()} | {f"{part}.weight" for part in head.split()}
    for layer in range(3):
        expected |= {f"{model}.layers.{layer}.{part}.weight" for part in inside.split()}
        expected |= {f"{model}.layers.{layer}.{part}.bias" for part in biased.split()}
    expected |= {"gpt_neox.final_layer_norm.bias"} if name == "gpt-neox" else set()
    rj.save_pretrained(random_model(name), tmp_path / "saved")
    assert set(load_file(tmp_path / "saved" / "model.safetensors")) == expected


def _saved(name: str, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    model = random_model(name)
    rj.save_pretrained(model, folder / "saved")
    return load_file(folder / "saved" / "model.safetensors"), parameters(model.decoder)


def test_kernels_are_stored_outputs_first(tmp_path: Path) -> None:
    stored, ours = _saved("llama", tmp_path)
    assert stored["model.layers.1.self_attn.k_proj.weight"].shape == (2 * 4, 16)
    assert np.array_equal(stored["model.layers.1.self_attn.k_proj.weight"], ours["blocks.attention.key.kernel"][1].T)
    assert np.array_equal(stored["lm_head.weight"], ours["unembedding"].T)


def test_phi3_stores_queries_keys_and_values_one_under_the_other(tmp_path: Path) -> None:
    stored, ours = _saved("phi3", tmp_path)
    kernels = [ours[f"blocks.attention.{part}.kernel"][2].T for part in ("query", "key", "value")]
    assert np.array_equal(stored["model.layers.2.self_attn.qkv_proj.weight"], np.concatenate(kernels))
    gate, up = (ours[f"blocks.mlp.{part}.kernel"][0].T for part in ("gate", "up"))
    assert np.array_equal(stored["model.layers.0.mlp.gate_up_proj.weight"], np.concatenate([gate, up]))


def test_neox_stores_queries_keys_and_values_head_by_head(tmp_path: Path) -> None:
    stored, ours = _saved("gpt-neox", tmp_path)
    rows = stored["gpt_neox.layers.1.attention.query_key_value.weight"].reshape(4, 3, 4, 16)
    bias = stored["gpt_neox.layers.1.attention.query_key_value.bias"].reshape(4, 3, 4)
    for place, part in enumerate(("query", "key", "value")):
        assert np.array_equal(rows[:, place].reshape(16, 16).T, ours[f"blocks.attention.{part}.kernel"][1])
        assert np.array_equal(bias[:, place].reshape(16), ours[f"blocks.attention.{part}.bias"][1])


def test_gemma_stores_norms_as_differences_from_one(tmp_path: Path) -> None:
    stored, ours = _saved("gemma3", tmp_path)
    assert np.array_equal(1 + stored["model.norm.weight"], ours["norm.scale"])
    norm = ours["blocks.attention.key_norm.scale"][2]
    assert np.array_equal(1 + stored["model.layers.2.self_attn.k_norm.weight"], norm)


@pytest.mark.parametrize(
    ("prefix", "head", "vision"),
    [
        ("model.language_model", "lm_head", "model.vision_tower."),
        ("language_model.model", "language_model.lm_head", "vision_tower."),
    ],
)
def test_gemma3_is_found_inside_a_model_with_vision(prefix: str, head: str, vision: str, tmp_path: Path) -> None:
    stored, _ = _saved("gemma3", tmp_path)
    inside = {name.replace("model.", f"{prefix}.", 1): tensor for name, tensor in stored.items()}
    inside |= {f"{head}.weight": stored["model.embed_tokens.weight"], f"{vision}patch.weight": np.ones(3, np.float32)}
    save_file(inside, tmp_path / "saved" / "model.safetensors")
    assert np.array_equal(
        parameters(rj.load_pretrained(tmp_path / "saved").decoder)["embedding"], stored["model.embed_tokens.weight"]
    )


@pytest.mark.parametrize(
    ("name", "buffer"),
    [
        ("llama", "model.layers.1.self_attn.rotary_emb.inv_freq"),
        ("gpt-neox", "gpt_neox.layers.0.attention.bias"),
        ("gpt-neox", "gpt_neox.layers.2.attention.masked_bias"),
    ],
)
def test_buffers_of_old_checkpoints_are_passed_over(name: str, buffer: str, tmp_path: Path) -> None:
    stored, ours = _saved(name, tmp_path)
    save_file({**stored, buffer: np.ones(2, np.float32)}, tmp_path / "saved" / "model.safetensors")
    assert parameters(rj.load_pretrained(tmp_path / "saved").decoder).keys() == ours.keys()
    # Of layers that the model does not have they are strangers.
    strange = buffer.replace(".0.", ".9.").replace(".1.", ".9.").replace(".2.", ".9.")
    save_file({**stored, strange: np.ones(2, np.float32)}, tmp_path / "saved" / "model.safetensors")
    with pytest.raises(ValueError, match=rf"nothing else; got .* with {strange}"):
        rj.load_pretrained(tmp_path / "saved")

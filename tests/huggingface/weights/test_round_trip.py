"""What is saved is what is loaded, bit for bit, in every family, dtype and number of files."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import outline
from tests.huggingface.weights.families import CONFIGS, parameters, random_model

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

from safetensors.numpy import load_file

VERSIONS: tuple[Literal[4, 5], ...] = (4, 5)


def same(one: Any, other: Any) -> bool:
    first, second = parameters(one.decoder), parameters(other.decoder)
    return first.keys() == second.keys() and all(np.array_equal(first[path], second[path]) for path in first)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_comes_back_bit_for_bit(name: str, version: Literal[4, 5], tmp_path: Path) -> None:
    model = random_model(name)
    rj.save_pretrained(model, tmp_path / "saved", version=version)
    again = rj.load_pretrained(tmp_path / "saved")
    assert same(model, again)
    assert (again.decoder.config, again.rope.specs) == (model.decoder.config, model.rope.specs)
    assert (again.rope.layer_groups, again.trained_length) == (model.rope.layer_groups, model.trained_length)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma3", "gpt-neox"])
def test_shards_hold_what_one_file_holds(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    rj.save_pretrained(model, tmp_path / "one")
    rj.save_pretrained(model, tmp_path / "many", max_shard_bytes=3000)
    whole = load_file(tmp_path / "one" / "model.safetensors")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    held = {file: load_file(tmp_path / "many" / file) for file in files}
    assert {name: file for file in files for name in held[file]} == index["weight_map"]
    assert all(np.array_equal(held[index["weight_map"][name]][name], whole[name]) for name in whole)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    assert all(sum(t.nbytes for t in shard.values()) <= 3000 or len(shard) == 1 for shard in held.values())
    assert same(rj.load_pretrained(tmp_path / "many"), model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama-biases", "gemma2", "gpt-neox"])
def test_sixteen_bits_come_back_bit_for_bit(name: str, dtype: str, tmp_path: Path) -> None:
    model = random_model(name)
    rj.save_pretrained(model, tmp_path / "narrow", dtype=dtype)
    narrow = load_file(tmp_path / "narrow" / "model.safetensors")
    assert {tensor.dtype.name for tensor in narrow.values()} == {dtype}
    assert json.loads((tmp_path / "narrow" / "config.json").read_text(encoding="utf-8"))["dtype"] == dtype
    loaded = rj.load_pretrained(tmp_path / "narrow", param_dtype=dtype)
    kinds = {array.dtype.name for array in parameters(loaded.decoder).values()}
    # Norm scales stored as differences from one would lose bits.
    assert kinds == ({dtype, "float32"} if name == "gemma2" else {dtype})
    rj.save_pretrained(loaded, tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == narrow.keys() and all(np.array_equal(again[key], narrow[key]) for key in again)
    wide = rj.load_pretrained(tmp_path / "narrow")
    assert all(array.dtype == np.float32 for array in parameters(wide.decoder).values())
    assert np.array_equal(parameters(wide.decoder)["embedding"], narrow_embedding(narrow).astype(np.float32))


def narrow_embedding(tensors: dict[str, np.ndarray]) -> np.ndarray:
    (name,) = (name for name in tensors if "embed_tokens" in name or "embed_in" in name)
    return tensors[name]


def test_weights_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = random_model("llama")
    model.decoder.embedding[...] = model.decoder.embedding[...].at[0, 0].set(1e6)
    with pytest.raises(
        ValueError, match=r"`dtype` must hold every weight; got float16 for .*embed_tokens.* with 1e\+06"
    ):
        rj.save_pretrained(model, tmp_path / "narrow", dtype="float16")
    assert not list(tmp_path.iterdir())
    rj.save_pretrained(model, tmp_path / "wide")
    with pytest.raises(ValueError, match="`param_dtype` must hold every weight"):
        rj.load_pretrained(tmp_path / "wide", param_dtype="float16")


def test_weights_changed_here_are_what_is_saved(tmp_path: Path) -> None:
    model = random_model("llama")
    model.decoder.norm.scale[...] = model.decoder.norm.scale[...] + 1
    rj.save_pretrained(model, tmp_path / "tuned")
    saved = load_file(tmp_path / "tuned" / "model.safetensors")
    assert np.array_equal(saved["model.norm.weight"], model.decoder.norm.scale[...])


def test_a_replaced_rope_is_what_is_saved(tmp_path: Path) -> None:
    model = random_model("llama", original_max_position_embeddings=16, no_rope_layers=[])
    (spec,) = model.rope.specs.values()
    assert spec is not None
    yarn = rj.YaRN(factor=4.0, original_length=32)
    stretched = dataclasses.replace(model.rope, specs={"all": dataclasses.replace(spec, transform=yarn)})
    rj.save_pretrained(dataclasses.replace(model, rope=stretched), tmp_path / "stretched")
    again = outline(tmp_path / "stretched")
    assert again.rope.specs["all"] == stretched.specs["all"]
    assert again.trained_length == again.config["original_max_position_embeddings"] == 32
    assert "rope_theta" not in again.config and again.config["rope_parameters"]["rope_theta"] == 5e5


def test_settings_in_other_groups_are_saved_in_the_words_of_the_family(tmp_path: Path) -> None:
    model = random_model("gemma3")
    spec = rj.RopeSpec(8, theta=1e6, transform=rj.PositionInterpolation(factor=2.0))
    rj.save_pretrained(dataclasses.replace(model, rope=rj.ModelRope({"all": spec}, ("all",) * 3)), tmp_path / "gemma3")
    written = json.loads((tmp_path / "gemma3" / "config.json").read_text(encoding="utf-8"))["rope_parameters"]
    linear = {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}
    assert written == {"sliding_attention": linear, "full_attention": linear}
    smollm = random_model("smollm3")
    turned = rj.ModelRope({"all": rj.RopeSpec(4)}, ("all",) * 3)
    rj.save_pretrained(dataclasses.replace(smollm, rope=turned), tmp_path / "smollm3")
    assert rj.from_huggingface(tmp_path / "smollm3").layer_groups == ("all",) * 3


def test_a_gguf_is_saved_as_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the hf extra is not installed: gguf")
    from tests.huggingface.weights import gguf_files

    weights = gguf_files.hugging_face_weights()
    loaded = rj.load_pretrained(gguf_files.write_file(tmp_path / "model.gguf", weights))
    rj.save_pretrained(loaded, tmp_path / "folder")
    stored = load_file(tmp_path / "folder" / "model.safetensors")
    assert stored.keys() == weights.keys() and all(np.array_equal(stored[key], weights[key]) for key in weights)
    again = rj.load_pretrained(tmp_path / "folder")
    assert same(loaded, again) and again.rope.specs == loaded.rope.specs

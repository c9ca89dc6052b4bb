"""Files, shards and the index over them: what must be there, and what an index may name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import digest, outline
from tests.huggingface.weights.families import random_model

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    rj.save_pretrained(random_model("llama"), folder / "one")
    rj.save_pretrained(random_model("llama"), folder / "many", max_shard_bytes=3000)
    return folder


def test_a_file_that_may_not_be_read_is_said_to_be_one(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = shutil.copytree(saved / "one", tmp_path / "one"), Path.open

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.suffix == ".safetensors":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    for function in (rj.load_pretrained, outline, digest):
        with pytest.raises(
            PermissionError, match=r"`source` must be a path that may be read; got .*: Permission denied"
        ):
            function(folder)


def test_shards_must_be_there_and_hold_what_the_index_says(saved: Path, tmp_path: Path) -> None:
    missing = shutil.copytree(saved / "many", tmp_path / "missing")
    shard = next(missing.glob("model-00002*"))
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=rf"every shard of .*; got .* without {shard.name}\. Fetch"):
        rj.load_pretrained(missing)
    moved = shutil.copytree(saved / "many", tmp_path / "moved")
    index = json.loads((moved / "model.safetensors.index.json").read_text(encoding="utf-8"))
    other = index["weight_map"]["lm_head.weight"]
    index["weight_map"][UP] = other
    (moved / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"what its index says; got {UP} in .*, in the index under {other}"):
        rj.load_pretrained(moved)
    outside: tuple[Any, ...] = ("../one/model.safetensors", "/model.safetensors", "..", "a\\b.safetensors")
    for name in (*outside, "", "config.json", 3, None):
        index["weight_map"][UP] = name
        (moved / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        with pytest.raises(ValueError, match="names safetensors files of its folder; got "):
            rj.load_pretrained(moved)
    for text, message in (
        ("[", r"must be valid JSON; got .*index\.json"),
        ("[]", r"must hold a JSON object; got list in .*index\.json"),
        ("{}", "an index with a `weight_map`"),
        ('{"weight_map": [1]}', "an index with a `weight_map`"),
        ('{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}', "JSON; got .*: the key 'a' stands twice"),
    ):
        (moved / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            rj.load_pretrained(moved)

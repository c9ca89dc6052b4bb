"""Saving: refused before anything is written, or whole; never half."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import save
from rope_jax.huggingface.weights.gguf_write import save_gguf
from tests.huggingface.weights.families import parameters, random_model
from tests.source import ROOT

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")
pytest.importorskip("gguf", reason="the hf extra is not installed: gguf")

SAVES: dict[str, Callable[[Any, Any], None]] = {"folder": rj.save_pretrained, "path": save_gguf}


def changed(path: str, value: Any) -> Any:
    """A model one of whose parameters was replaced behind its configuration's back."""
    model = random_model("llama", num_hidden_layers=1)
    inner: Any = model.decoder
    *folders, leaf = path.split(".")
    for folder in folders:
        inner = getattr(inner, folder)
    if value is None:
        setattr(inner, leaf, None)
    else:
        getattr(inner, leaf).set_value(value)
    return model


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("argument", SAVES)
@pytest.mark.parametrize(
    ("path", "value", "got"),
    [
        ("embedding", jnp.ones((21, 16)), r"embedding of shape \(21, 16\) instead of \(20, 16\)"),
        ("unembedding", None, r"unembedding of shape None instead of \(16, 20\)"),
        ("blocks.mlp.up.kernel", jnp.ones((1, 24, 16)), r"blocks\.mlp\.up\.kernel of shape \(1, 24, 16\) instead of"),
        ("blocks.mlp.up.kernel", jnp.ones((2, 16, 24)), r"blocks\.mlp\.up\.kernel of shape \(2, 16, 24\) instead of"),
        ("norm.scale", jnp.ones((16,), jnp.int32), "floating parameters; got int32"),
    ],
)
def test_parameters_must_be_those_of_the_configuration(
    argument: str, path: str, value: Any, got: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"`model` must hold .*{got}"):
        SAVES[argument](changed(path, value), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_model(tmp_path: Path) -> None:
    model = random_model("llama", num_hidden_layers=1)
    for write in SAVES.values():
        others: tuple[Any, ...] = (None, 3, {}, model.decoder)
        for other in others:
            with pytest.raises(TypeError, match=r"`model` must be a Pretrained; got .*, which has no decoder"):
                write(other, tmp_path / "out")
        parts = {"decoder": model.decoder, "rope": model.rope, "tokenizer": None, "config": model.config}
        with pytest.raises(TypeError, match="`model` must have a configuration of keys; got list"):
            write(SimpleNamespace(**parts | {"config": []}), tmp_path / "out")
        with pytest.raises(TypeError, match=r"`model` must have a tokenizers\.Tokenizer or None; got str"):
            write(SimpleNamespace(**parts | {"tokenizer": "words"}), tmp_path / "out")
    strange = dataclasses.replace(model, config={**model.config, "note": np.float32(1)})
    with pytest.raises(
        ValueError, match="`model` must have a configuration of JSON values; got Object of type float32"
    ):
        rj.save_pretrained(strange, tmp_path / "out")
    for count in ("5GB", 1.5, True, None):
        with pytest.raises(TypeError, match="`max_shard_bytes` must be an integer; got"):
            rj.save_pretrained(model, tmp_path / "out", max_shard_bytes=count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`dtype` must be float32, float16 or bfloat16; got \[\]"):
        save_gguf(model, tmp_path / "out", dtype=[])  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_beyond_the_vocabulary_is_not_saved(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the hf extra is not installed: tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(21)}, "w0"))
    model = dataclasses.replace(random_model("llama", num_hidden_layers=1), tokenizer=words)
    with pytest.raises(ValueError, match="`tokenizer` must give ids below `vocab_size` 20; got 'w20'"):
        rj.save_pretrained(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("argument", SAVES)
def test_places_that_cannot_be_written(argument: str, tmp_path: Path) -> None:
    model, write = random_model("llama", num_hidden_layers=1), SAVES[argument]
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "inner").write_text("kept", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    for place, error, message in (
        (3, TypeError, f"`{argument}` must be a path; got int"),
        (None, TypeError, f"`{argument}` must be a path; got NoneType"),
        ("", ValueError, f"`{argument}` must be a path; got ''"),
        ("a\0b", ValueError, f"`{argument}` must be a path; got "),
        (
            tmp_path / "file" / "inner",
            OSError,
            f"`{argument}` must be a place .* got .*: Not a directory. Nothing was wr",
        ),
        (tmp_path / ("x" * 300), OSError, f"`{argument}` must be a place .*: File name too long. Nothing was written"),
        (tmp_path / "full", FileExistsError, f"`{argument}` must be .*; got "),
    ):
        with pytest.raises(error, match=message) as caught:
            write(model, place)
        assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("argument", SAVES)
def test_the_longest_name_and_links(argument: str, tmp_path: Path) -> None:
    model, write = random_model("llama", num_hidden_layers=1), SAVES[argument]
    longest, link = tmp_path / ("x" * 250 + ".gguf"), tmp_path / "link.gguf"
    write(model, longest)
    link.symlink_to(tmp_path / "place.gguf")
    write(model, link)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.gguf", "place.gguf", longest.name]
    assert link.is_symlink() and rj.load_pretrained(link).decoder.config == model.decoder.config


@pytest.mark.parametrize("argument", SAVES)
def test_a_full_disk_leaves_nothing(argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(*arguments: Any, **options: Any) -> None:
        raise SafetensorError("I/O error: No space left on device")

    def short(*arguments: Any, **options: Any) -> None:
        raise OSError("8192 requested and 2088 written")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    monkeypatch.setattr("gguf.GGUFWriter.write_tensor_data", short)
    with pytest.raises(
        OSError, match=f"`{argument}` must be a place with room .*: .*(No space|2088 written).*make room"
    ):
        SAVES[argument](random_model("llama", num_hidden_layers=1), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_configuration_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then no reader takes what is there for a checkpoint, wherever the process was killed."""
    seen: list[list[str]] = []

    def written(folder: Path, model: Any) -> None:
        seen.append(sorted(path.name for path in folder.iterdir()))
        with pytest.raises(FileNotFoundError, match=r"must hold a config\.json"):
            rj.load_pretrained(folder)
        assert not (tmp_path / "out").exists()

    monkeypatch.setattr(save, "_write_tokenizer", written)
    rj.save_pretrained(random_model("llama", num_hidden_layers=1), tmp_path / "out", max_shard_bytes=10_000)
    assert seen == [["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX]]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


INDEX = "model.safetensors.index.json"


def test_files_may_be_read_by_whom_the_mask_lets(tmp_path: Path) -> None:
    model = random_model("llama", num_hidden_layers=1)
    rj.save_pretrained(model, tmp_path / "out", max_shard_bytes=10_000)
    (tmp_path / "plain").write_text("", encoding="utf-8")
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_one_tensor_to_a_file(tmp_path: Path) -> None:
    model = random_model("llama", num_hidden_layers=1)
    rj.save_pretrained(model, tmp_path / "out", max_shard_bytes=1)
    index = json.loads((tmp_path / "out" / INDEX).read_text(encoding="utf-8"))["weight_map"]
    assert len(set(index.values())) == len(index) == 12
    again = parameters(rj.load_pretrained(tmp_path / "out").decoder)
    assert all(np.array_equal(array, again[path]) for path, array in parameters(model.decoder).items())


KILLED = """
import sys
import rope_jax as rj
from tests.huggingface.weights.families import random_model

model = random_model("llama", hidden_size=512, intermediate_size=2048)
print("ready", flush=True)
rj.save_pretrained(model, sys.argv[1], max_shard_bytes=1)
"""


@pytest.mark.slow
def test_a_killed_save_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "out")],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    while child.poll() is None and not list(tmp_path.glob(".out.partial-*/*.safetensors")):
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (partial,) = tmp_path.iterdir()
    assert partial.name.startswith(".out.partial-") and not (partial / "config.json").exists()
    with pytest.raises(FileNotFoundError, match=r"must hold a config\.json"):
        rj.load_pretrained(partial)
    rj.save_pretrained(random_model("llama", num_hidden_layers=1), tmp_path / "out")
    assert rj.load_pretrained(tmp_path / "out").decoder.config.layers == 1

"""Checkpoints that are damaged, incomplete or of another kind: one clear line, before a weight is read."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import digest, load_tokenizer, outline
from rope_jax.huggingface.weights.safetensors_folder import SafetensorsFolder
from tests.huggingface.weights.families import parameters, random_model, write_config

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

from safetensors.numpy import load_file, save_file

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    rj.save_pretrained(random_model("llama"), folder / "one")
    return folder


def truncate(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])


def cut_header(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:30])


def tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors")

    return edit


def config(**changed: Any) -> Callable[[Path], None]:
    return lambda folder: write_config(folder, **changed)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")


def stale(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}', encoding="utf-8")


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (truncate, r"whole safetensors files; got .*model\.safetensors: .*\. Fetch the file again"),
    "cut header": (cut_header, r"whole safetensors files; got .*model\.safetensors"),
    "extra tensor": (
        tensors(lambda t: t.update(extra=np.ones(2, np.float32))),
        r"nothing else; got .* with extra\. Correct",
    ),
    "missing tensor": (tensors(lambda t: t.pop(UP)), rf"every weight of the model; got .* without {UP}\. Fetch"),
    "missing head": (
        tensors(lambda t: t.pop("lm_head.weight")),
        r"without lm_head\.weight\. Set `tie_word_embeddings`",
    ),
    "wrong shape": (tensors(lambda t: t.update({UP: t[UP].T.copy()})), rf"{UP} in shape \(24, 16\).*got \(16, 24\)"),
    "wrong vocabulary": (config(vocab_size=21), r"embed_tokens.weight in shape \(21, 16\).*got \(20, 16\)"),
    "fewer layers": (config(num_hidden_layers=2), r"nothing else; got .* with model\.layers\.2\..* and 4 more"),
    "integers": (tensors(lambda t: t.update({UP: t[UP].astype(np.int8)})), rf"bfloat16 or float16; got I8 for {UP}"),
    "pickle": (pickled, r"must hold safetensors; got .*pytorch_model\.bin, a pickle.*Convert it"),
    "both forms": (stale, r"must hold model\.safetensors or .*; got both"),
    "unknown architecture": (
        config(model_type="gpt_oss"),
        r"`model_type` must be one .*gemma2.*qwen3.*; got 'gpt_oss'",
    ),
    "no architecture": (config(model_type="absent"), r"`model_type` must be .*; got None"),
    "quantized": (config(quantization_config={"bits": 4}), r"`quantization_config` must be absent; got"),
    "unknown activation": (config(hidden_act="quick_gelu"), r"`hidden_act` must be one of gelu, .*; got 'quick_gelu'"),
    "zero size": (config(intermediate_size=0), r"`intermediate_size` must be an integer of at least 1; got 0"),
    "more layers than tensors": (
        config(num_hidden_layers=2**31),
        r"`num_hidden_layers` must be at most the 30 tensors of the checkpoint; got 2147483648\. Correct it",
    ),
    "more layers in another word": (config(n_layers=1e300), "`n_layers` must be at most the 30 tensors"),
    "endless size": (config(vocab_size=2**31), "`vocab_size` must be an integer of at most 32 bits; got 2147483648"),
    "endless number": (config(rms_norm_eps=10**400), "`rms_norm_eps` must be a number that a float can hold; got one"),
    "slopes": (config(alibi=True), "`alibi` must be absent or false; got True"),
    "broken name": (
        tensors(lambda t: t.update({"a\nb\u202e": np.ones(2, np.float32)})),
        r"nothing else; got .* with 'a\\nb\\u202e'\. Correct",
    ),
    "endless name": (
        tensors(lambda t: t.update({"x" * 3000: np.ones(2, np.float32)})),
        r"nothing else; got .* with x{200}\.\.\. \(3000 characters\)\. Correct",
    ),
    "endless value": (
        config(quantization_config={"skip": ["layer"] * 1000}),
        r"`quantization_config` must be absent; got .{200}\.\.\. \(\d+ characters\)\. Load",
    ),
    "tokenizer is a folder": (lambda folder: (folder / "tokenizer.json").mkdir(), r"whole tokenizer\.json; got"),
    "tokenizer is a link to nothing": (
        lambda folder: (folder / "tokenizer.json").symlink_to(folder / "gone"),
        r"whole tokenizer\.json; got",
    ),
    "query scale": (
        config(
            rope_parameters={
                **{"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16},
                **{"rope_theta": 1e4, "llama_4_scaling_beta": 0.1},
            }
        ),
        r"leave logits unscaled for the model type .*; got softmax_scale 1.0 and query_scale Mistral3QueryScale",
    ),
}


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight may be read."""

    def read(self: Any, name: str) -> np.ndarray:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(SafetensorsFolder, "read", read)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_one_clear_line(case: str, saved: Path, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    folder = shutil.copytree(saved / "one", tmp_path / "broken")
    change(folder)
    for opened in (rj.load_pretrained, outline):
        with pytest.raises(ValueError, match=message) as caught:
            opened(folder)
        assert "\n" not in str(caught.value)


def test_a_tied_head_must_repeat_the_embedding(tmp_path: Path) -> None:
    model = random_model("qwen3")
    rj.save_pretrained(model, tmp_path / "tied")
    held = load_file(tmp_path / "tied" / "model.safetensors")
    assert "lm_head.weight" not in held
    repeated = {**held, "lm_head.weight": held["model.embed_tokens.weight"].copy()}
    save_file(repeated, tmp_path / "tied" / "model.safetensors")
    assert "unembedding" not in parameters(rj.load_pretrained(tmp_path / "tied").decoder)
    repeated["lm_head.weight"][3, 3] += 1
    save_file(repeated, tmp_path / "tied" / "model.safetensors")
    with pytest.raises(ValueError, match=r"`tie_word_embeddings` must be false where lm_head\.weight differs"):
        rj.load_pretrained(tmp_path / "tied")
    write_config(tmp_path / "tied", tie_word_embeddings=False)
    untied = parameters(rj.load_pretrained(tmp_path / "tied").decoder)
    assert np.array_equal(untied["unembedding"], repeated["lm_head.weight"].T)


def test_a_tokenizer_must_fit_the_vocabulary(saved: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the hf extra is not installed: tokenizers")
    folder = shutil.copytree(saved / "one", tmp_path / "words")
    for count, fits in ((12, True), (20, True), (21, False)):
        words = {f"w{i}": i for i in range(count)}
        tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0")).save(str(folder / "tokenizer.json"))
        if fits:
            assert rj.load_pretrained(folder).tokenizer.get_vocab_size() == count
            continue
        with pytest.raises(ValueError, match=r"`tokenizer` must give ids below `vocab_size` 20; got 'w20' from 20 on"):
            rj.load_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {', encoding="utf-8")
    with pytest.raises(ValueError, match=r"whole tokenizer\.json; got .*\. Fetch it again"):
        load_tokenizer(folder)


def test_what_is_no_checkpoint(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="the hf extra is not installed: huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    bare, empty = tmp_path / "bare", tmp_path / "empty"
    bare.mkdir()
    shutil.copytree(saved / "one", empty, ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "model.pt").write_bytes(b"\x80")
    cases: list[tuple[Any, type[Exception], str]] = [
        (bare, FileNotFoundError, r"must hold a config\.json"),
        (empty, FileNotFoundError, r"must hold model\.safetensors or .*without either"),
        (tmp_path / "model.pt", ValueError, r"model\.pt, a pickle"),
        (saved / "one" / "model.safetensors", ValueError, r"must be a folder, a \.gguf file or a hub id; got the file"),
        (tmp_path / "absent", FileNotFoundError, "must be a folder, a file or a hub id"),
        ("nobody/no-such-model", FileNotFoundError, "neither here nor reachable there"),
    ]
    for source, error, message in cases:
        for function in (rj.load_pretrained, digest):
            if source == empty and function is digest:
                continue
            with pytest.raises(error, match=message):
                function(source)
    with pytest.raises(ValueError, match="`param_dtype` must be one of"):
        rj.load_pretrained(saved / "one", param_dtype="float64")


@pytest.mark.usefixtures("unchecked")
def test_saving_is_refused_before_anything_is_written(saved: Path, tmp_path: Path) -> None:
    model = random_model("llama")
    with pytest.raises(FileExistsError, match="`folder` must be new or empty"):
        rj.save_pretrained(model, saved / "one")
    still = rj.ModelRope({"rope": rj.RopeSpec(4), "nope": None}, ("rope", "nope", "rope"))
    split = rj.ModelRope({"a": rj.RopeSpec(4), "b": rj.RopeSpec(4, theta=5e5)}, ("a", "b", "a"))
    # Layers that share a group of the decoder turn alike.
    for rope in (still, split):
        with pytest.raises(ValueError, match=r"`rope` must turn the layers of the decoder's group 'all' alike"):
            dataclasses.replace(model, rope=rope)
    moving = rj.DynamicYaRN(original_length=32)
    unnamed = dataclasses.replace(model, rope=rj.ModelRope({"all": rj.RopeSpec(4, transform=moving)}, ("all",) * 3))
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (unnamed, {}, "`transform` must be static or have a rope type"),
        (model, {"dtype": "float64"}, "`dtype` must be one of"),
        (model, {"max_shard_bytes": 0}, "`max_shard_bytes` must be at least 1"),
        (model, {"version": 3}, "`version` must be 4 or 5"),
    ]
    for changed, options, message in cases:
        with pytest.raises(ValueError, match=message):
            rj.save_pretrained(changed, tmp_path / "out", **options)
        assert not list(tmp_path.iterdir())


def test_a_save_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="disk full"):
        rj.save_pretrained(random_model("llama"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not list((tmp_path / "out").iterdir())

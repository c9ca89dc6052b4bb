"""scripts/export.py: what goes to stdout can be used as it is, and a refusal is one line that leaves nothing behind."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from scripts import export
from tests.huggingface import runtime_models
from tests.huggingface.configs import CONFIGS
from tests.source import ROOT

STORIES = ROOT.parent / "shared" / "data" / "stories260K"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "head_dim": 32,
    "num_hidden_layers": 2,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 64,
}
# What runtimes are known to drop of real configurations, asked at their own lengths.
DROPPED = {
    ("phi-4-mini", "vllm"): "dependence on the length",
    ("internlm2", "vllm"): "dependence on the length",
    ("ministral-3", "vllm"): "`query_scale`.*would be lost",
    ("llama-4", "vllm"): "`query_scale`.*would be lost",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, LLAMA)


def written(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[str, str]:
    """stdout without its last newline, and stderr."""
    assert export.main([str(word) for word in words]) == 0
    shown = capsys.readouterr()
    return shown.out.removesuffix("\n"), shown.err


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    assert export.main([str(word) for word in words]) == 2
    shown = capsys.readouterr()
    *remarks, error = shown.err.splitlines()
    assert shown.out == "" and error.startswith("error: ") and not any(line.startswith("error") for line in remarks)
    return error


def overrides(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[:2] == ["vllm", "serve"]
    found: dict[str, Any] = json.loads(words[words.index("--hf-overrides") + 1])
    return found


@pytest.mark.parametrize("runtime", ["transformers", "vllm"])
@pytest.mark.parametrize("name", CONFIGS)
def test_real_configurations(name, runtime, tmp_path, capsys):
    config = {"max_position_embeddings": 32768} | CONFIGS[name]
    source = written(tmp_path, config)
    if (name, runtime) in DROPPED:
        assert re.search(DROPPED[name, runtime], refused(capsys, source, "--for", runtime))
        return
    out, _ = run(capsys, source, "--for", runtime)
    fields = overrides(out) if runtime == "vllm" else json.loads(out)
    kept = {key: value for key, value in config.items() if key not in ("rope_scaling", "rope_theta", "rope_parameters")}
    again, rope = rj.from_huggingface(kept | fields), rj.from_huggingface(config)
    length = 65536 if rope.needs_length else None
    for group, schedule in rope.schedules(length).items():
        found = again.schedules(length)[group]
        assert (found is None) == (schedule is None)
        if schedule is not None and found is not None:
            np.testing.assert_allclose(found.float64(), schedule.float64(), rtol=1e-6)
            assert found.attention_scale == pytest.approx(float(schedule.attention_scale), rel=1e-6)


def test_a_method_on_top_for_vllm(folder, capsys):
    out, err = run(capsys, folder, "--for", "vllm", "--method", "YaRN()", "--length", 256, "--dtype", "bfloat16")
    assert shlex.split(out)[2] == str(folder) and shlex.split(out)[-4:] == [
        "--max-model-len",
        "256",
        "--dtype",
        "bfloat16",
    ]
    assert "trained length 64" in err and "factor=4.0, original_length=64, beta_fast=4.0" in err
    found = overrides(out)
    schedule = rj.YaRN(factor=4.0, original_length=64, beta_fast=4.0)(rj.geometric_schedule(32))
    got = runtime_models.vllm(found["rope_parameters"], head=32, max_position=256, max_model_len=256)
    assert found["max_position_embeddings"] == 256
    np.testing.assert_allclose(got[0], schedule.float64(), rtol=1e-6)
    assert got[1] == pytest.approx(float(schedule.attention_scale), rel=1e-6)


def test_a_written_factor_gives_the_length(folder, capsys):
    out, _ = run(capsys, folder / "config.json", "--for", "vllm", "--method", "PositionInterpolation(factor=2)")
    assert shlex.split(out)[2] == str(folder) and out.endswith("--max-model-len 128")


def test_composite_configurations_are_overridden_inside(tmp_path, capsys):
    text = {**CONFIGS["gemma-3"], "max_position_embeddings": 131072}
    source = written(tmp_path, {"model_type": "gemma3", "text_config": text})
    out, _ = run(capsys, source, "--for", "vllm")
    assert list(overrides(out)) == ["text_config"] and out.endswith("--max-model-len 131072")


def test_a_limit_of_the_tokenizer_is_told(folder, capsys):
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 64}', encoding="utf-8")
    words = (folder, "--for", "vllm", "--method", "YaRN()", "--length", 256)
    assert "model_max_length is 64" in run(capsys, *words)[1]


def test_length_dependence_goes_on_request(folder, capsys):
    words = (folder, "--for", "vllm", "--method", "DynamicNTK(factor=2)", "--length", 256)
    assert "--no-strict" in refused(capsys, *words)
    out, err = run(capsys, *words, "--no-strict")
    expected = rj.DynamicNTK(factor=2.0, original_length=64)(rj.geometric_schedule(32), length=256).float64()
    got, _ = runtime_models.vllm(overrides(out)["rope_parameters"], head=32, max_position=256, max_model_len=256)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert "the frequencies of 256 tokens, for sequences of every length" in err


def test_both_spellings_for_transformers(folder, capsys):
    words = (folder, "--for", "transformers", "--method", "PositionInterpolation(factor=2)")
    assert json.loads(run(capsys, *words)[0])["rope_parameters"]["factor"] == 2
    out, err = run(capsys, *words, "--version", 4)
    assert json.loads(out)["rope_scaling"] == {"rope_type": "linear", "factor": 2} and "transformers 4.31" in err


def test_llama_cpp_gets_a_script(folder, capsys):
    out, _ = run(capsys, folder, "--for", "gguf", "--method", "YaRN(factor=4, attention_scale=1.1)")
    *comments, command = out.splitlines()
    assert comments and all(line.startswith("# llama.rope.") or "rope_freqs" in line for line in comments)
    flags = shlex.split(command)
    assert flags[:5] == ["llama-server", "-m", "MODEL.gguf", "-c", "256"]
    got = runtime_models.llama_cpp(flags[5:], {}, width=32, trained=64)
    schedule = rj.YaRN(factor=4.0, original_length=64, beta_fast=4.0, attention_scale=1.1)(rj.geometric_schedule(32))
    np.testing.assert_allclose(got[0], schedule.float64(), rtol=1e-6)
    assert got[1] == pytest.approx(1.1, rel=1e-6)


@pytest.mark.parametrize("name", ["phi-4-mini", "internlm2"])
def test_llama_cpp_fixes_the_length(name, tmp_path, capsys):
    assert "dependence on the length" in refused(capsys, written(tmp_path, CONFIGS[name]), "--for", "gguf")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--for", "vllm", "--method", "YaRN()"], "`--length` must be given"),
        (["--for", "vllm", "--method", "Yarn()"], "'YaRN'"),
        (["--for", "vllm", "--length", "0"], "`--length` must be at least 1"),
        (["--for", "vllm", "--method", "YaRN()", "--length", "32"], "`factor` must be"),
        (["--for", "vllm", "--method", "Drop()"], "stand still.*would be lost"),
        (["--for", "vllm", "--output", "NEW"], "`--output` must be left out"),
        (["--for", "transformers", "--output", "NEW"], "`source` must hold weights"),
        (["--for", "gguf", "--output", "NEW"], "`source` must hold weights"),
        (["--for", "gguf", "--dtype", "float16"], "`--dtype` must come with --output"),
        (["--for", "gguf", "--method", "NTKByParts(factor=4)"], "single pairs would be lost"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(words, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert re.search(message, refused(capsys, folder, *words))
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("source", ["missing/config.json", "missing.gguf"])
def test_missing_sources(source, tmp_path, capsys):
    assert "missing" in refused(capsys, tmp_path / source, "--for", "vllm")


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit, match="0"):
        export.main(["--help"])
    text = capsys.readouterr().out
    for option in ("--for", "--method", "--length", "--output", "--version", "--dtype", "--no-strict", "SOURCE"):
        assert option in text


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs the trained checkpoint beside the repository")
class TestWeights:
    def test_to_transformers_and_gguf_and_back(self, tmp_path, capsys):
        stretched, file, back = (tmp_path / name for name in ("stretched", "model.gguf", "back"))
        method = ("--method", "YaRN(factor=4, attention_scale=1.05)")
        assert run(capsys, STORIES, "--for", "transformers", *method, "--output", stretched)[0] == str(stretched)
        assert run(capsys, stretched, "--for", "gguf", "--output", file)[0] == str(file)
        assert "must be a folder or a hub id" in refused(capsys, file, "--for", "vllm")
        assert run(capsys, file, "--for", "transformers", "--output", back)[0] == str(back)
        first, last = (rj.from_huggingface(path).schedules()["all"] for path in (stretched, back))
        assert first is not None and last is not None
        np.testing.assert_allclose(last.float64(), first.float64(), rtol=1e-6)
        assert float(last.attention_scale) == pytest.approx(1.05, rel=1e-6)
        assert "new or an empty folder" in refused(capsys, STORIES, "--for", "transformers", "--output", stretched)
        assert "not be the file" in refused(capsys, file, "--for", "gguf", "--output", file)

    def test_refused_before_weights_are_read(self, tmp_path, capsys):
        output = tmp_path / "model.gguf"
        words = ("--for", "gguf", "--method", "DynamicNTK(factor=2)", "--output", output)
        assert "dependence on the length" in refused(capsys, STORIES, *words)
        assert not output.exists()
        assert "must be a .gguf file" in refused(capsys, STORIES, "--for", "gguf", "--output", tmp_path / "model.bin")


@pytest.mark.parametrize("length", ["0", "-5", str(2**31), "10" * 200])
@pytest.mark.parametrize("runtime", export.RUNTIMES)
def test_lengths_that_no_position_reaches(folder, runtime, length, capsys):
    words = (folder, "--for", runtime, "--method", "YaRN()", "--length", length)
    assert f"`--length` must be at least 1 token and at most 2147483647; got {length[:40]}." in refused(capsys, *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[]", "must hold a JSON object; got list"),
        (b"{", "must be valid JSON; got "),
        (b"\xff", "must be valid JSON; got "),
        (b"[" * 100_000, "must be valid JSON; got "),
        (b'{"model_max_length": "long"}', "`model_max_length` must be a number; got 'long'"),
        (b'{"model_max_length": [1]}', "`model_max_length` must be a number; got '[1]'"),
    ],
    ids=["list", "cut", "no text", "deep", "text", "numbers"],
)
def test_a_broken_tokenizer_configuration(folder, text, message, capsys):
    (folder / "tokenizer_config.json").write_bytes(text)
    words = (folder, "--for", "vllm", "--method", "YaRN()", "--length", 256)
    assert message in refused(capsys, *words)


def test_a_place_that_cannot_be(tmp_path, capsys):
    for part in ("config.json", "model.safetensors"):
        (tmp_path / part).write_text(json.dumps(LLAMA), encoding="utf-8")
    words = (tmp_path, "--for", "transformers", "--output", tmp_path / ("x" * 300))
    assert re.search("`--output` must be a place .*: File name too long. Nothing was written", refused(capsys, *words))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]

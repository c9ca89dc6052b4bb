"""JSON, figures, files of every kind, refusals in one line."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rope_jax.experiment.inspect import as_json, read_inspection, run_inspection
from tests.huggingface.configs import CONFIGS

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "inspect_rope.py"

Call = Callable[..., Any]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_configuration_as_json(name: str) -> None:
    config = {"max_position_embeddings": 4096} | CONFIGS[name]
    inspection = read_inspection(config)
    found = json.loads(json.dumps(as_json([inspection]), allow_nan=False))["configs"][0]
    assert set(found["groups"]) == set(inspection.rope.specs)
    for group, entry in found["groups"].items():
        spec = inspection.rope.specs[group]
        assert all(line["origin"] for line in entry["settings"].values())
        for spectrum in entry["spectra"]:
            assert spec is not None
            schedule = spec.schedule(spectrum["length"])
            assert spectrum["pairs"]["inv_freq"] == schedule.float64().tolist()
            np.testing.assert_allclose(spectrum["logit_scale"], float(schedule.attention_scale) ** 2, rtol=1e-6)
            assert sorted(pair for band in spectrum["bands"].values() for pair in band) == list(range(schedule.pairs))


def test_every_collected_configuration(shared: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = shared / "cases" / "wild-configs.json"
    if not path.is_file():
        pytest.skip("reference data: no collected configurations")
    for case in json.loads(path.read_text(encoding="utf-8")):
        file = tmp_path / f"{case['name']}.json"
        file.write_text(json.dumps(case["config"]), encoding="utf-8")
        assert run_inspection([str(file)]) == (0 if case["expect"] else 2)
        printed = capsys.readouterr()
        assert bool(printed.out) == bool(case["expect"])
        assert printed.err.count("\n") == (0 if case["expect"] else 1)


@pytest.mark.parametrize(
    "names",
    [
        ("internlm2",),
        pytest.param(("gemma-4",), marks=pytest.mark.slow),
        pytest.param(("llama-4", "gpt-oss"), marks=pytest.mark.slow),
    ],
)
def test_figures(names: tuple[str, ...], write: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "figures" / "spectra.png"
    folders = [write(name, {"max_position_embeddings": 65536}) for name in names]
    assert run_inspection([*folders, "--figure", str(picture)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.json"], "absent.json"),
        (["OK", "OK", "OK"], "`config` must be one configuration or two; got 3."),
        (["OK", "--length", "0"], "`length` must be at least 1 token; got [0]."),
        (["OK", "--trained-length", "0"], "`trained_length` must be at least 1 token; got 0."),
        (["OK", "--figure", "spectra.pdf"], "`figure` must be the name of a .png file; got 'spectra.pdf'."),
        (["MISSPELT"], "`rope_scaling.beta_fats` must be a key of the rope type"),
        (["LENGTHLESS"], "Pass --trained-length."),
        (["UNTURNED"], "`original_length` must let some pair make `beta_slow`"),
    ],
)
def test_a_users_fault_is_one_line_and_code_2(
    words: list[str], message: str, write: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {
        "OK": lambda: write("gpt-oss"),
        "MISSPELT": lambda: write("gpt-oss", beta_fats=32),
        "UNTURNED": lambda: write("gpt-oss", original_max_position_embeddings=2),
        "LENGTHLESS": lambda: write("smollm3"),
    }
    assert run_inspection([known[word]() if word in known else word for word in words]) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert refused.err.startswith("error: ") and refused.err.count("\n") == 1
    assert message in refused.err


def test_a_gguf_file_is_read_by_its_metadata(tmp_path: Path, printed: Call) -> None:
    pytest.importorskip("gguf")
    from tests.huggingface.weights.gguf_files import hugging_face_weights, write_file

    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata=scaling)
    assert "PositionInterpolation" in printed(str(path))


def test_the_script_is_this_function(write: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["inspect_rope.py", write("gpt-oss"), "--json"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert left.value.code == 0

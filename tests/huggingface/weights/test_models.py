"""Tiny models of every weight family against the logits that transformers gave for them (tests/golden/models.json)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from tests.golden import recipe

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

from safetensors.numpy import save_file

GOLDEN: dict[str, Any] = json.loads((Path(recipe.__file__).parent / "models.json").read_text(encoding="utf-8"))
MODELS = GOLDEN["models"]


def write(folder: Path, name: str) -> Path:
    """The checkpoint of a family's default rope type, as transformers would have saved it."""
    entry = MODELS[name]
    (folder / "config.json").write_text(json.dumps(entry["config"]), encoding="utf-8")
    tensors = {tensor: recipe.tensor(tensor, tuple(shape)) for tensor, shape in entry["tensors"].items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_every_family_has_its_goldens() -> None:
    assert set(MODELS) == set(recipe.CONFIGS)
    assert all(set(entry["kinds"]) == set(recipe.kinds(name)) for name, entry in MODELS.items())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = rj.load_pretrained(write(tmp_path, name))
    for kind, golden in MODELS[name]["kinds"].items():
        rope = rj.from_huggingface(MODELS[name]["config"] | golden["config"])
        for row, expected in golden["logits"].items():
            positions = np.asarray([recipe.position_rows(name)[row]])
            got = model.logits(np.asarray(recipe.TOKEN_IDS[:1]), positions=positions, rope=rope)
            error = np.max(np.abs(got[0, -len(expected) :] - np.asarray(expected)))
            assert error <= 1e-4 * np.ptp(expected), (kind, row, error)

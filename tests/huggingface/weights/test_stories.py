"""A trained model of 260 thousand parameters, against what others computed with it."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import Pretrained

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")
pytest.importorskip("tokenizers", reason="the hf extra is not installed: tokenizers")


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    path = shared / "data" / "stories260K"
    if not path.is_dir():
        pytest.skip("reference data: no stories260K")
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Pretrained:
    loaded: Pretrained = rj.load_pretrained(folder)
    return loaded


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "reference_outputs.json").read_text(encoding="utf-8"))
    return found


def losses(model: Pretrained, ids: list[int], rope: rj.ModelRope | None = None) -> np.ndarray:
    """Nats of every token after the first."""
    logits = model.logits(ids[:-1], rope=rope)
    chosen = np.asarray(logits)[np.arange(len(ids) - 1), ids[1:]]
    return np.asarray(jax.nn.logsumexp(logits, axis=-1)) - chosen


def test_the_reference_story(model: Pretrained, reference: dict[str, Any]) -> None:
    ids = reference["story_ids_with_bos"]
    got = losses(model, ids)
    assert abs(got.mean() - reference["mean_nll"]) <= 1e-5
    # Stated to six decimals.
    np.testing.assert_allclose(got, reference["nll_nats_of_ids[1:]"], atol=2e-5)
    at_31 = model.logits(ids[:-1])[31, :16]
    np.testing.assert_allclose(at_31, reference["logits_at_position_31_first_16_vocab"], atol=1e-4)


def test_its_tokenizer(model: Pretrained, reference: dict[str, Any]) -> None:
    assert model.tokenizer.encode(reference["story_text"]).ids == reference["story_ids_with_bos"][1:]
    assert model.tokenizer.decode(reference["greedy_ids_from_bos"]) == reference["greedy_text"]
    assert (model.trained_length, model.decoder.config.vocab) == (512, 512)


@pytest.mark.slow
def test_greedy_text(model: Pretrained, reference: dict[str, Any]) -> None:
    expected = reference["greedy_ids_from_bos"]
    ids = np.zeros(len(expected), np.int32)
    ids[0] = expected[0]
    for last in range(len(ids) - 1):
        ids[last + 1] = int(np.argmax(model.logits(ids)[last]))
    assert ids.tolist() == expected


METHODS = {
    "none": rj.Identity(),
    **{f"PI s={s}": rj.PositionInterpolation(factor=float(s)) for s in (2, 4)},
    **{f"NTK s={s}": rj.NTKAware(factor=float(s)) for s in (2, 4)},
    **{f"YaRN s={s}": rj.YaRN(factor=float(s), original_length=512) for s in (2, 4)},
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_losses_past_the_trained_length(method: str, model: Pretrained, folder: Path) -> None:
    extension = json.loads((folder / "extension.json").read_text(encoding="utf-8"))
    assert set(METHODS) == set(extension["losses"])
    (spec,) = model.rope.specs.values()
    assert spec is not None
    specs = {"all": dataclasses.replace(spec, transform=METHODS[method])}
    rope = dataclasses.replace(model.rope, specs=specs)
    by_position = np.mean([losses(model, window, rope) for window in extension["windows"]], axis=0)
    bins = extension["bins"]
    got = [by_position[a:b].mean() for a, b in pairwise(bins)] + [by_position.mean()]
    np.testing.assert_allclose(got, extension["losses"][method], atol=2e-5)

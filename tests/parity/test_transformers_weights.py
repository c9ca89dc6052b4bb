"""Tiny random models of every weight family, live against transformers: logits, padding, cache."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests.golden import recipe

pytest.importorskip("torch", reason="the parity extra is not installed: torch")
pytest.importorskip("transformers", reason="the parity extra is not installed: transformers")

import torch

from scripts.make_golden import transformers_model

CASES = [(name, kind) for name in recipe.CONFIGS for kind in recipe.kinds(name)]
STATIC = [(name, kind) for name, kind in CASES if kind not in ("dynamic", "longrope")]
TOKEN_IDS = np.asarray(recipe.TOKEN_IDS)
SPREAD = 1e-4


@functools.cache
def folder_of(name: str, kind: str, root: Path) -> Path:
    """The model as transformers saves it."""
    folder = root / f"{name}-{kind}"
    transformers_model(name, kind).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def theirs(model: Any, token_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """transformers' logits; the mask of ones keeps it from taking gaps for ends of documents."""
    ids = torch.tensor(token_ids)
    with torch.no_grad():
        output = model(ids, position_ids=torch.tensor(positions), attention_mask=torch.ones_like(ids))
    return output.logits.numpy()


def agree(got: Any, expected: np.ndarray) -> None:
    error, spread = np.max(np.abs(np.asarray(got) - expected)), np.ptp(expected)
    assert error <= SPREAD * spread, f"{error:.2e} of a spread of {spread:.3g}"


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_logits_at_explicit_positions(name: str, kind: str, root: Path) -> None:
    model = rj.load_pretrained(folder_of(name, kind, root))
    for row in recipe.position_rows(name).values():
        positions = np.asarray([row, row])
        # Their length-dependent rotations remember the last length: a model of its own for every reading.
        agree(
            model.logits(TOKEN_IDS, positions=positions), theirs(transformers_model(name, kind), TOKEN_IDS, positions)
        )


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_logits_of_whole_sequences(name: str, kind: str, root: Path) -> None:
    """Below, at, and four times the original length, from position 0."""
    model = rj.load_pretrained(folder_of(name, kind, root))
    for length in (recipe.ORIGINAL // 2, recipe.ORIGINAL, 4 * recipe.ORIGINAL):
        token_ids = np.random.default_rng(length).integers(0, recipe.VOCAB, (1, length))
        expected = theirs(transformers_model(name, kind), token_ids, np.arange(length)[None])
        agree(model.logits(token_ids), expected)


@pytest.mark.parametrize("name", recipe.CONFIGS)
@pytest.mark.parametrize("kind", ["default", "yarn", "dynamic", "longrope"])
def test_padded_batches(name: str, kind: str, root: Path) -> None:
    """Static types against transformers' own padding; every type against our result for the row alone."""
    if kind not in recipe.kinds(name):
        pytest.skip(f"transformers refuses {kind} for {name}")
    model = rj.load_pretrained(folder_of(name, kind, root))
    length, short = 3 * recipe.ORIGINAL, recipe.ORIGINAL // 2
    token_ids = np.random.default_rng(0).integers(0, recipe.VOCAB, (2, length))
    mask = np.ones_like(token_ids)
    mask[1, : length - short] = 0
    positions = np.asarray(rj.padded_positions(mask == 1))
    got = np.asarray(model.logits(token_ids, positions=positions))
    alone = model.logits(token_ids[1:, length - short :])
    agree(got[1, length - short :], np.asarray(alone[0] if alone.ndim == 3 else alone))
    if (name, kind) in STATIC:
        with torch.no_grad():
            ids, torch_mask = torch.tensor(token_ids), torch.tensor(mask)
            rows = torch.tensor(np.maximum(positions, 0))
            expected = transformers_model(name, kind)(ids, attention_mask=torch_mask, position_ids=rows).logits.numpy()
        agree(got[0], expected[0])
        agree(got[1, length - short :], expected[1, length - short :])


@pytest.mark.parametrize(("name", "kind"), STATIC)
def test_cached_decoding(name: str, kind: str, root: Path) -> None:
    """A prompt, then one token at a time, on both sides."""
    model, other = rj.load_pretrained(folder_of(name, kind, root)), transformers_model(name, kind)
    schedules = model.schedules()
    cache = model.decoder.empty_cache(2, recipe.SEQ)
    past = None
    for start, stop in ((0, 6), *((at, at + 1) for at in range(6, recipe.SEQ))):
        positions = jnp.arange(start, stop, dtype=jnp.int32)[None]
        logits, cache = _step(model.decoder, TOKEN_IDS[:, start:stop], schedules, positions, cache)
        with torch.no_grad():
            output = other(torch.tensor(TOKEN_IDS[:, start:stop]), past_key_values=past, use_cache=True)
        past = output.past_key_values
        agree(logits, output.logits.numpy())


@jax.jit
def _step(decoder: Any, token_ids: Any, schedules: Any, positions: Any, cache: Any) -> Any:
    return decoder(token_ids, schedules, positions=positions, cache=cache)

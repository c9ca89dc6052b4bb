"""A published model of 135 million parameters against transformers, which opens the folder made of its file."""

from pathlib import Path

import numpy as np
import pytest

import rope_jax as rj
from tests.huggingface.weights.test_smollm2 import AGREE, book_ids, smollm2_file

pytest.importorskip("torch", reason="the parity extra is not installed: torch")
pytest.importorskip("transformers", reason="the parity extra is not installed: transformers")

import torch
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_logits_of_a_book(shared: Path, tmp_path: Path) -> None:
    model = rj.load_pretrained(smollm2_file())
    rj.save_pretrained(model, tmp_path / "smollm2")
    other = AutoModelForCausalLM.from_pretrained(tmp_path / "smollm2", dtype=torch.float32)
    ids = book_ids(model, shared)
    with torch.no_grad():
        expected = other(torch.tensor(ids)[None]).logits[0].numpy()
    assert np.max(np.abs(np.asarray(model.logits(ids)) - expected)) <= AGREE * np.ptp(expected)

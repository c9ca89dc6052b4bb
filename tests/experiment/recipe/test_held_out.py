"""No text is both trained on and evaluated."""

import numpy as np
import pytest

from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.corpus import read_corpus
from rope_jax.experiment.recipe.held_out import evaluation_windows, held_out
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from tests.experiment.recipe.texts import recipe_of, segments_of, write_texts


def contents(documents):
    return [document.tokens.tobytes() for document in documents]


def test_the_parts_have_no_text_in_common_and_lose_none(tmp_path):
    texts = write_texts(tmp_path, [40] * 20)
    recipe = recipe_of(tmp_path)
    train, evaluated = held_out(recipe, 150, seed=3, longest=30)
    kept = contents(train.sources[0].documents)
    assert sorted(kept + contents(evaluated)) == sorted(texts)
    assert 150 <= sum(map(len, contents(evaluated))) < 150 + 40
    again, same = held_out(recipe, 150, seed=3, longest=30, corpus=read_corpus(recipe))
    assert contents(same) == contents(evaluated) and again.digest == train.digest
    assert contents(held_out(recipe, 150, seed=4)[1]) != contents(evaluated)


def test_a_text_of_two_sources_is_held_out_of_both(tmp_path):
    texts = write_texts(tmp_path, [40] * 20)
    (tmp_path / "copy.txt").write_bytes(texts[0])
    every = SourceConfig(f"{tmp_path}/*.txt")
    recipe = RecipeConfig((every, SourceConfig(f"{tmp_path}/*.txt", shortest=10)))
    train, evaluated = held_out(recipe, 400, seed=0)
    assert len(set(contents(evaluated))) == len(evaluated) == 10
    for source in train.sources:
        assert not set(contents(source.documents)) & set(contents(evaluated))
        assert set(contents(source.documents)) | set(contents(evaluated)) == set(texts)
    stream = batches(recipe, length=40, rows=8, corpus=train)
    trained = {bytes(inputs.tolist()) for _ in range(20) for inputs, *_ in segments_of(next(stream))}
    stream.close()
    assert trained == set(texts) - set(contents(evaluated))


def test_only_documents_that_hold_a_window_are_held_out(tmp_path):
    write_texts(tmp_path, [10] * 40 + [60] * 5)
    _, evaluated = held_out(recipe_of(tmp_path), 100, seed=0, longest=50)
    assert {document.tokens.size for document in evaluated} == {60}


def test_one_text_is_cut(tmp_path):
    (text,) = write_texts(tmp_path, [100])
    train, evaluated = held_out(recipe_of(tmp_path), 30, seed=0)
    assert contents(train.sources[0].documents) == [text[:70]] and contents(evaluated) == [text[70:]]


@pytest.mark.parametrize(
    ("tokens", "longest", "said"),
    [
        (30, 30, "`tokens` must hold a window of 30 tokens and its last target, .* got 30 of 200 tokens"),
        (101, 5, "be at most half of the text; got 101 of 200 tokens"),
        (50, 20, "must leave room for 50 held-out tokens in documents of at least 21 tokens.* 0 would be held out"),
    ],
)
def test_too_little_text_raises(tmp_path, tokens, longest, said):
    write_texts(tmp_path, [20] * 10)
    with pytest.raises(ValueError, match=said):
        held_out(recipe_of(tmp_path), tokens, seed=0, longest=longest)


def test_a_source_is_not_left_empty(tmp_path):
    write_texts(tmp_path / "a", [40] * 20)
    write_texts(tmp_path / "b", [45])
    recipe = recipe_of(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match=r"`data.sources\[1\]` must keep documents to train on; got 1"):
        held_out(recipe, 45, seed=0, longest=42)


def test_a_source_is_not_left_without_a_target(tmp_path):
    write_texts(tmp_path / "a", [40] * 20)
    write_texts(tmp_path / "b", [45, 1])
    recipe = recipe_of(tmp_path / "a", tmp_path / "b")
    with pytest.raises(
        ValueError, match=r"`data.sources\[1\]` must hold documents of at least 2 tokens.* got 1 of 1 in"
    ):
        held_out(recipe, 45, seed=0, longest=42)


def test_a_window_has_a_token(tmp_path):
    write_texts(tmp_path, [20] * 10)
    with pytest.raises(ValueError, match="`longest` must be at least 1; got -10"):
        held_out(recipe_of(tmp_path), -5, seed=0, longest=-10)


def test_windows_lie_in_the_documents(tmp_path):
    texts = write_texts(tmp_path, [40] * 20)
    _, evaluated = held_out(recipe_of(tmp_path), 200, seed=0, longest=16)
    windows = evaluation_windows(evaluated, 16, 6)
    assert windows.shape == (6, 17) and windows.dtype == np.int32
    assert len({bytes(row.tolist()) for row in windows}) == 6
    assert all(any(bytes(row.tolist()) in text for text in texts) for row in windows)
    with pytest.raises(ValueError, match=r"`count` must be from 1 to the 120 windows of 17 tokens in 5 documents"):
        evaluation_windows(evaluated, 16, 121)

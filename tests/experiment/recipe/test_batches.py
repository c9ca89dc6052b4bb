"""What processes get, positions with skips, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.corpus import read_corpus
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from tests.experiment.recipe.texts import assert_same, recipe_of, write_texts

SIZES = [n % 29 + 2 for n in range(80)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("texts")
    write_texts(made, SIZES)
    return made


@pytest.mark.parametrize("settings", [{}, {"pose_chunks": 3}, {"buckets": (8,)}], ids=["plain", "pose", "buckets"])
def test_processes_share_the_rows_of_the_batch_that_one_would_have(folder, settings):
    recipe = recipe_of(folder, **settings)
    corpus = read_corpus(recipe)
    asked: dict[str, Any] = {
        "length": 16,
        "rows": 8,
        "corpus": corpus,
        "target_length": 50 if recipe.pose_chunks else None,
    }
    whole = batches(recipe, **asked)
    parts = {n: [batches(recipe, process=i, processes=n, **asked) for i in range(n)] for n in (2, 4)}
    for _ in range(6):
        expected = next(whole)
        for n, streams in parts.items():
            for i, stream in enumerate(streams):
                assert_same(next(stream), type(expected)(*(part[i::n] for part in expected)))
                # What one process saves, any number of them can go on from.
                assert stream.get_state() == whole.get_state()
    for stream in (whole, *parts[2], *parts[4]):
        stream.close()


@pytest.mark.parametrize("target", [10_000_000, 2**31 - 1])
@pytest.mark.parametrize("masked", [True, False])
def test_pose_reaches_far_targets_in_int32(folder, target, masked):
    stream = batches(recipe_of(folder, pose_chunks=3, masked=masked), length=16, rows=64, target_length=target)
    batch = next(stream)
    stream.close()
    assert batch.positions.dtype == np.int32
    real = batch.segments > 0
    assert (batch.positions[~real] == -1).all() and (batch.positions[:, 0] == 0).all()
    steps = np.diff(batch.positions.astype(np.int64), axis=1)[real[:, 1:]]
    assert (steps >= 1).all() and 64 < (steps > 1).sum() <= 2 * 64
    assert 0.9 * target < batch.positions.max() < target


def test_pose_moves_chunks_of_a_row_within_the_target(folder):
    plain, skipped = (
        batches(recipe_of(folder, pose_chunks=chunks), length=16, rows=16, target_length=target)
        for chunks, target in ((0, None), (2, 200))
    )
    reached, met = 0, set()
    for _ in range(4):
        one, other = next(plain), next(skipped)
        real = one.segments > 0
        np.testing.assert_array_equal(other.segments, one.segments)
        np.testing.assert_array_equal(other.positions == -1, ~real)
        for row, mask in zip(other.positions, real, strict=True):
            steps = np.diff(row[mask])
            # Neighbours but for one skip at most, from the row's start, and inside the target.
            assert row[0] == 0 and (steps >= 1).all() and (steps > 1).sum() <= 1 and row.max() < 200
            met.add(tuple(row.tolist()))
            reached = max(reached, int(row.max()))
    plain.close(), skipped.close()
    assert reached > 100 and len(met) > 50


@pytest.mark.parametrize(
    ("settings", "asked", "said"),
    [
        ({}, {"rows": 6, "processes": 4}, r"`rows` must be a multiple of the 4 processes; got 6 rows of 16 tokens"),
        (
            {"buckets": (8,)},
            {"rows": 4, "processes": 3},
            "`rows` must be a multiple of the 3 processes; got 8 rows of 8",
        ),
        ({}, {"length": 1}, "`length` must be at least 2; got 1"),
        ({}, {"rows": 0}, "`rows` must be at least 1; got 0"),
        ({}, {"process": 2, "processes": 2}, "`process` must be from 0 to 1; got 2"),
        ({"buckets": (5,)}, {}, "`data.buckets` must hold divisors of the 64 tokens of a batch; got 5"),
        ({"buckets": (32,)}, {}, "`data.buckets` must hold lengths from 2 to that of the rows, 16; got 32"),
        ({"buckets": (8, 8)}, {}, "`data.buckets` must hold each length once"),
        ({"pose_chunks": 2}, {}, "`target_length` must be given for PoSE, and at least the row length 16; got None"),
        ({"pose_chunks": 2}, {"target_length": 8}, "at least the row length 16; got 8"),
        ({"pose_chunks": 2}, {"target_length": 2**31}, r"`target_length` must be at most 2\^31 - 1; got 2147483648"),
        ({}, {"target_length": 64}, "`target_length` must be left out without PoSE; got 64"),
        ({"pose_chunks": -1}, {}, "`data.pose_chunks` must be at least 0"),
        ({"seed": -1}, {}, "`data.seed` must be from 0 to 2.32 - 1; got -1"),
        ({"sources": ()}, {}, "`data.sources` must hold a source"),
        ({"end_token": "</s>"}, {}, "`data.end_token` must be .* for bytes, which have none; got '</s>'"),
    ],
)
def test_what_is_asked_must_fit(folder, settings, asked, said):
    with pytest.raises(ValueError, match=said):
        batches(replace(recipe_of(folder), **settings), **({"length": 16, "rows": 4} | asked))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": 0.0}, r"`data.sources\[0\].weight` must be above 0 and finite; got 0.0"),
        ({"weight": float("inf")}, r"`data.sources\[0\].weight` must be above 0 and finite; got inf"),
        ({"shortest": 0}, r"`data.sources\[0\].shortest` must be at least 1; got 0"),
        ({"shortest": 9, "longest": 8}, r"`data.sources\[0\].longest` must be at least `shortest`, 9; got 8"),
    ],
)
def test_a_source_must_be_one(settings, said):
    # Before anything is read: there is no such file.
    with pytest.raises(ValueError, match=said):
        batches(RecipeConfig((SourceConfig("absent", **settings),)), length=16, rows=4)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((1.0, 1e-300), r"`data.sources\[1\].weight` must be at least 1e-06 of all weights, 1.0; got 1e-300"),
        ((5e-324, 1.0), r"`data.sources\[0\].weight` must be at least 1e-06 of all weights, 1.0; got 5e-324"),
        ((1e308, 1e308), r"`data.sources\[0\].weight` must be at least 1e-06 of all weights, inf; got 1e\+308"),
    ],
)
def test_weights_must_be_of_one_scale(weights, said):
    with pytest.raises(ValueError, match=said):
        batches(RecipeConfig(tuple(SourceConfig("absent", weight=weight) for weight in weights)), length=16, rows=4)


@pytest.mark.parametrize("weights", [(1e-310, 1e-310), (1.0, 2e-6), (1e-300, 2e-300)])
def test_weights_of_any_one_scale_are_mixed(folder, weights):
    recipe = RecipeConfig(tuple(SourceConfig(f"{folder}/*.txt", weight=weight) for weight in weights))
    stream = batches(recipe, length=16, rows=256)
    sources = next(stream).sources
    stream.close()
    share = (sources == 2).sum() / (sources > 0).sum()
    assert abs(share - weights[1] / sum(weights)) < 0.05


def test_an_unknown_packing_raises(folder, unchecked):
    with pytest.raises(ValueError, match=r"`data.packing` must be one of .* got 'worst'"):
        batches(recipe_of(folder, packing="worst"), length=16, rows=4)


def test_documents_without_any_target_raise(tmp_path):
    write_texts(tmp_path, [1, 1])
    with pytest.raises(ValueError, match=r"`data.sources\[0\]` must hold documents of at least 2 tokens.* got 2 of 1"):
        batches(recipe_of(tmp_path), length=16, rows=4)
    # As soon as they are read, whatever the other sources hold.
    write_texts(tmp_path / "long", [9])
    with pytest.raises(
        ValueError, match=r"`data.sources\[1\]` must hold documents of at least 2 tokens.* got 2 of 1 in"
    ):
        read_corpus(recipe_of(tmp_path / "long", tmp_path))


def test_a_corpus_of_other_sources_is_refused(folder):
    corpus = read_corpus(recipe_of(folder))
    batches(recipe_of(folder, weights=(2.0,)), length=16, rows=4, corpus=corpus).close()
    other = RecipeConfig((SourceConfig(f"{folder}/*.txt", longest=9),))
    with pytest.raises(ValueError, match="`corpus` must be of the recipe's own sources"):
        batches(other, length=16, rows=4, corpus=corpus)

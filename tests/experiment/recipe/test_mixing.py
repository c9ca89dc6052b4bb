"""Shares of trained tokens, and batches of several row lengths."""

import numpy as np
import pytest

from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.record import TrainedRecord
from tests.experiment.recipe.texts import recipe_of, segments_of, write_texts

RNG = np.random.default_rng(2)
SHORT, LONG = RNG.integers(3, 20, 300).tolist(), RNG.integers(100, 900, 40).tolist()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("short"), tmp_path_factory.mktemp("long")
    write_texts(made[0], SHORT, seed=1)
    write_texts(made[1], LONG, seed=2)
    return made


@pytest.mark.parametrize(
    "settings",
    [{"packing": "best_fit"}, {"packing": "concat"}, {"packing": "none"}, {"buckets": (8, 16)}],
    ids=["best_fit", "concat", "none", "buckets"],
)
@pytest.mark.parametrize("weights", [(3.0, 2.0), (0.1, 0.9)])
def test_a_weight_is_a_share_of_the_trained_tokens(folders, settings, weights):
    recipe = recipe_of(*folders, weights=weights, **settings)
    stream, record = batches(recipe, length=32, rows=32), TrainedRecord(recipe)
    for _ in range(120):
        record.add(next(stream))
    stream.close()
    written = record.as_dict()
    assert [source["path"].split("/")[-2] for source in written["sources"]] == [folder.name for folder in folders]
    assert sum(source["targets"] for source in written["sources"]) == written["targets"]
    for source, weight in zip(written["sources"], weights, strict=True):
        assert source["asked"] == weight / sum(weights)
        assert abs(source["achieved"] - source["asked"]) < 0.02


def test_a_share_is_of_tokens_and_not_of_documents(folders):
    """Half the tokens from each: the short ones are then most of the documents."""
    stream = batches(recipe_of(*folders), length=32, rows=32)
    counts = np.zeros(3, int)
    for batch in (next(stream) for _ in range(60)):
        for row in range(32):
            for segment in range(1, batch.segments[row].max() + 1):
                counts[batch.sources[row][batch.segments[row] == segment][0]] += 1
    stream.close()
    assert counts[1] > 2 * counts[2] > 0


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_a_batch_has_rows_of_one_bucket_and_the_tokens_of_every_other(folders, packing):
    recipe = recipe_of(*folders, packing=packing, buckets=(16, 8))
    stream, record = batches(recipe, length=32, rows=4), TrainedRecord(recipe)
    sizes: dict[int, set[int]] = {}
    for batch in (next(stream) for _ in range(120)):
        rows, length = batch.inputs.shape
        assert rows * length == 4 * 32
        record.add(batch)
        sizes.setdefault(length, set()).update(inputs.size for inputs, *_ in segments_of(batch))
    stream.close()
    assert sorted(sizes) == [8, 16, 32]
    assert sum(record.as_dict()["batches_by_length"].values()) == 120
    if packing != "concat":
        # A piece is in the shortest rows that hold it.
        assert max(sizes[8]) <= 8 and 8 < min(sizes[16]) <= max(sizes[16]) <= 16 < min(sizes[32])


def test_a_bucket_without_documents_gives_no_batch(tmp_path):
    write_texts(tmp_path, [20, 21, 22])
    stream = batches(recipe_of(tmp_path, buckets=(8,)), length=32, rows=4)
    assert {next(stream).inputs.shape for _ in range(10)} == {(4, 32)}
    stream.close()

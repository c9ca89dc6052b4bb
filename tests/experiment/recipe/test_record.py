"""The counts of what was trained on, against counting token by token."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_jax.experiment.recipe.batch import Batch
from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.context import ContextHistogram
from rope_jax.experiment.recipe.corpus import read_corpus
from rope_jax.experiment.recipe.record import TrainedRecord
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from tests.experiment.recipe.texts import recipe_of, write_texts

ROWS, LENGTH = 3, 12


def counted(batch):
    """Targets by range of context, each found by looking at every token before."""
    found: dict[str, int] = {}
    for row in range(batch.segments.shape[0]):
        for token in range(batch.segments.shape[1]):
            if batch.weights[row, token]:
                context = sum(int(batch.segments[row, u] == batch.segments[row, token]) for u in range(token + 1))
                low = 1
                while 2 * low <= context:
                    low *= 2
                name = "1" if low == 1 else f"{low}-{2 * low - 1}"
                found[name] = found.get(name, 0) + 1
    return found


@st.composite
def packed_batches(draw):
    """Rows of segments that follow each other, some targets without weight, padding behind."""
    segments = np.zeros((ROWS, LENGTH), np.int32)
    for row in segments:
        sizes = draw(st.lists(st.integers(1, LENGTH), max_size=5))
        ends = np.minimum(np.cumsum([0, *sizes]), LENGTH)
        for number, (start, stop) in enumerate(itertools.pairwise(ends), 1):
            row[start:stop] = number
    trained = draw(st.lists(st.booleans(), min_size=ROWS * LENGTH, max_size=ROWS * LENGTH))
    weights = (np.asarray(trained).reshape(ROWS, LENGTH) & (segments > 0)).astype(np.float32)
    return Batch(segments, segments, weights, segments, segments, (segments > 0).astype(np.int32))


def nonzero(counts):
    return {name: count for name, count in counts.items() if count}


@given(packed_batches())
def test_context_is_the_tokens_before_in_the_segment(batch):
    histogram = ContextHistogram()
    histogram.add(batch)
    assert nonzero(histogram.as_dict()) == counted(batch)
    assert sum(histogram.as_dict().values()) == int(batch.weights.sum())


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_context_of_real_batches_merged_and_taken_up_again(tmp_path, packing):
    write_texts(tmp_path, [3, 5, 9, 17, 40])
    stream = batches(recipe_of(tmp_path, packing=packing), length=LENGTH, rows=4)
    whole, parts = ContextHistogram(), [ContextHistogram(), ContextHistogram()]
    expected: dict[str, int] = {}
    for step in range(6):
        batch = next(stream)
        whole.add(batch)
        parts[step % 2].add(batch)
        for name, count in counted(batch).items():
            expected[name] = expected.get(name, 0) + count
    stream.close()
    assert nonzero(whole.as_dict()) == expected
    merged = ContextHistogram.from_dict(json.loads(json.dumps(parts[0].as_dict()))).merge(parts[1])
    assert merged.as_dict() == whole.as_dict()


def test_a_whole_row_has_every_context_up_to_its_length():
    ones = np.ones((2, 8), np.int32)
    histogram = ContextHistogram()
    histogram.add(Batch(ones, ones, ones.astype(np.float32), ones, ones, ones))
    assert histogram.as_dict() == {"1": 2, "2-3": 4, "4-7": 8, "8-15": 2}


def test_a_record_goes_on_from_what_was_written_and_adds_up_over_processes(tmp_path):
    write_texts(tmp_path / "a", [3, 5, 9])
    write_texts(tmp_path / "b", [30, 20])
    recipe = recipe_of(tmp_path / "a", tmp_path / "b", packing="none", buckets=(4,))
    asked: dict[str, Any] = {"length": 8, "rows": 4}
    stream = batches(recipe, **asked)
    parts = [batches(recipe, process=i, processes=2, **asked) for i in range(2)]
    whole, first, shared = TrainedRecord(recipe), TrainedRecord(recipe), [TrainedRecord(recipe) for _ in parts]
    for step in range(8):
        batch = next(stream)
        whole.add(batch)
        if step == 4:
            written = json.loads(json.dumps(first.as_dict()))
            first = TrainedRecord(recipe)
            first.resume(written)
        first.add(batch)
        for record, part in zip(shared, parts, strict=True):
            record.add(next(part))
    for one in (stream, *parts):
        one.close()
    assert first.as_dict() == whole.as_dict() == shared[0].merge(shared[1]).as_dict()
    written = whole.as_dict()
    assert written["places"] == 8 * 32
    assert [(source["shortest"], source["longest"]) for source in written["sources"]] == [(1, None)] * 2
    assert 0 < written["padding"] < written["places"] - written["targets"]


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_how_often_a_source_was_read_is_recorded(tmp_path, packing):
    """Half the targets of a source of 40 targets and one of 300."""
    write_texts(tmp_path / "a", [11, 11, 11, 2])
    (tmp_path / "a" / "0004.txt").write_bytes((tmp_path / "a" / "0000.txt").read_bytes())
    write_texts(tmp_path / "b", [51] * 6)
    sources = (SourceConfig(f"{tmp_path}/a/*.txt", shortest=3), SourceConfig(f"{tmp_path}/b/*.txt"))
    recipe = RecipeConfig(sources, packing=packing)
    corpus = read_corpus(recipe)
    stream, record = batches(recipe, length=LENGTH, rows=4, corpus=corpus), TrainedRecord(recipe, corpus)
    for _ in range(128):
        record.add(next(stream))
    stream.close()
    again = TrainedRecord(recipe, corpus)
    again.resume(json.loads(json.dumps(record.as_dict())))
    assert again.as_dict() == record.as_dict()
    small, large = record.as_dict()["sources"]
    assert [small[name] for name in ("documents", "repeated", "left_out", "targets_an_epoch")] == [4, 1, 1, 40]
    assert [large[name] for name in ("documents", "repeated", "left_out", "targets_an_epoch")] == [6, 0, 0, 300]
    assert small["epochs"] == small["targets"] / 40 > 10 and large["epochs"] == large["targets"] / 300
    assert abs(small["epochs"] / large["epochs"] - 300 / 40) < 1


def test_nothing_is_said_of_a_corpus_that_is_not_given():
    assert "epochs" not in TrainedRecord(RecipeConfig()).as_dict()["sources"][0]

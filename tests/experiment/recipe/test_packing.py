"""Rows are the documents, whole or cut as said, and every token keeps the target that follows it in its document."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.packing import best_fit, longest_piece, packed
from tests.experiment.recipe.texts import recipe_of, segments_of, write_texts

PACKINGS = ("best_fit", "concat", "none")
LENGTH = 16
SIZES = (2, 5, 7, 9, 11, 15, 16, 17, 18, 33, 40, 3, 100)


def in_turn(sizes):
    """Draws pieces of these sizes over and over, each of its own number's tokens."""

    def draw(number, count):
        chosen = np.arange(number * count, (number + 1) * count) % len(sizes)
        own = np.asarray(sizes)[chosen]
        return np.repeat(np.repeat(chosen, own)[:, None], 3, axis=1).astype(np.int32), own

    return draw


def block(packing, sizes, length=LENGTH):
    """The rows of a stream's first block, and the sizes of the pieces that they hold."""
    stream = iter(packed(in_turn(sizes), packing, length, float(np.mean(sizes)), seed=1))
    rows = [next(stream)]
    while stream.get_state()["parent"]["next_index"] == 0:
        rows.append(next(stream))
    # The last one read is of the second block.
    count = 256 if packing == "none" else max(round(256 * length / np.mean(sizes)), 1)
    return rows[:-1], [sizes[n % len(sizes)] for n in range(count)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_block_holds_each_of_its_pieces_once(packing):
    rows, sizes = block(packing, (3, 5, 7, 9, 11, 15, 16, 4, 1))
    segments = [row["segments"] for row in rows]
    lengths = Counter(
        int(count) for row in segments for count in np.unique(row[row > 0], return_counts=True)[1].tolist()
    )
    assert sum(int((row > 0).sum()) for row in segments) == sum(sizes)
    if packing == "concat":
        assert sum(int((row == 0).any()) for row in segments) <= 1
    else:
        assert lengths == Counter(sizes)
    if packing == "none":
        assert len(rows) == len(sizes) and all(row.max() == 1 for row in segments)
    if packing == "best_fit":
        assert len(rows) <= 1.02 * sum(sizes) / LENGTH + 1


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_block_of_long_rows_takes_memory_for_its_rows_alone(packing):
    """Of 2^22 places, 20 bytes each and what they are made of; not of a row for every document that has room there."""
    tracemalloc.start()
    next(iter(packed(in_turn([512]), packing, 2**14, 512.0, seed=1)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22 * 100


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40))
def test_best_fit_is_what_its_rule_says(sizes):
    rooms: list[int] = []
    expected = [0] * len(sizes)
    for piece in sorted(range(len(sizes)), key=lambda piece: (-sizes[piece], piece)):
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= sizes[piece]]
        row = min(fitting)[1] if fitting else len(rooms)
        if not fitting:
            rooms.append(12)
        rooms[row] -= sizes[piece]
        expected[piece] = row
    assert min(rooms) >= 0
    assert best_fit(np.asarray(sizes), 12).tolist() == expected


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_segment_is_a_stretch_of_a_document_with_its_targets(tmp_path, packing):
    texts = write_texts(tmp_path, SIZES)
    cuts = {start for size in SIZES for start in range(0, size, longest_piece(packing, LENGTH))}
    stream = batches(recipe_of(tmp_path, packing=packing), length=LENGTH, rows=8)
    lone = 0
    for batch in (next(stream) for _ in range(30)):
        assert {part.dtype.name for part in batch} == {"int32", "float32"}
        padding = batch.segments == 0
        assert (batch.positions[padding] == -1).all()
        assert not batch.weights[padding].any() and not batch.targets[batch.weights == 0].any()
        for inputs, targets, weights, positions in segments_of(batch):
            assert positions.tolist() == list(range(inputs.size))
            stretch = bytes(inputs.tolist())
            if len(stretch) < 4:
                # A byte or two may stand in several documents.
                lone += 1
                continue
            ((text, start),) = [(text, text.index(stretch)) for text in texts if stretch in text]
            ends = start + len(stretch) == len(text)
            follows = text[start + 1 : start + 1 + len(stretch)]
            assert bytes(targets[: len(follows)].tolist()) == follows
            assert weights.tolist() == [1.0] * (len(stretch) - ends) + [0.0] * ends
            assert packing == "concat" or start in cuts
    stream.close()
    assert lone < 30 * 8


def test_a_long_document_is_cut_at_rows_and_its_last_token_alone_is_a_target_only(tmp_path):
    (text,) = write_texts(tmp_path, [2 * LENGTH + 1])
    stream = batches(recipe_of(tmp_path), length=LENGTH, rows=4)
    met = {
        (bytes(inputs.tolist()), int(targets[-1]), int(weights.sum()))
        for inputs, targets, weights, _ in segments_of(next(stream))
    }
    stream.close()
    assert met == {(text[:16], text[16], 16), (text[16:32], text[32], 16)}


@pytest.mark.parametrize("packing", PACKINGS)
def test_unmasked_rows_are_one_segment_with_positions_running_on(tmp_path, packing):
    write_texts(tmp_path, SIZES)
    masked, unmasked = (
        batches(recipe_of(tmp_path, packing=packing, masked=masked), length=LENGTH, rows=8) for masked in (True, False)
    )
    several = 0
    for _ in range(3):
        one, other = next(masked), next(unmasked)
        several += int((one.segments > 1).sum())
        # No target crosses a document's end in either.
        for name in ("inputs", "targets", "weights", "sources"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        real = one.segments > 0
        np.testing.assert_array_equal(other.segments, real)
        np.testing.assert_array_equal(other.positions, np.where(real, np.arange(LENGTH), -1))
    masked.close(), unmasked.close()
    assert several > 0 or packing == "none"

"""Sources in their shares, and each in one order after the other."""

import itertools
from collections import Counter

import numpy as np
import pytest

from rope_jax.experiment.data import Document
from rope_jax.experiment.recipe.corpus import Source
from rope_jax.experiment.recipe.order import Epochs, Mixture
from rope_jax.experiment.recipe.pieces import pieces_of
from rope_jax.experiment.recipe.settings import SourceConfig
from rope_jax.experiment.recipe.vocabulary import Vocabulary


def parts(*counts):
    """Sources of documents of two tokens, which say the source's number and their own."""
    return [
        pieces_of(
            Source(SourceConfig(), tuple(Document("", np.asarray([number, one], np.int32)) for one in range(count))),
            Vocabulary(2**20),
            longest=8,
            number=number,
        )
        for number, count in enumerate(counts, 1)
    ]


def drawn(mixture, blocks, count):
    """The source and number of every piece of the first blocks."""
    found = []
    for number in range(blocks):
        tokens, sizes = mixture(number, count)
        assert sizes.tolist() == [2] * count
        assert tokens[::2, 0].tolist() == tokens[::2, 2].tolist()
        found += list(zip(tokens[::2, 0].tolist(), tokens[::2, 1].tolist(), strict=True))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 50, 5000])
def test_every_epoch_is_whole_and_has_an_order_of_its_own(size):
    epochs = Epochs(size, seed=1)
    rounds = epochs.between(0, 8 * size).reshape(8, size)
    assert np.array_equal(np.sort(rounds, axis=1), np.tile(np.arange(size), (8, 1)))
    assert len(np.unique(rounds, axis=0)) >= {1: 1, 2: 2, 3: 3}.get(size, 8)
    # Wherever it is begun.
    at = 3 * size + size // 2
    assert np.array_equal(Epochs(size, seed=1).between(at, at + 2 * size), rounds.reshape(-1)[at : at + 2 * size])
    assert size == 1 or not np.array_equal(Epochs(size, seed=2).between(0, 8 * size), rounds.reshape(-1))


@pytest.mark.parametrize("units", [(1, 1), (3, 1, 2), (10**9, 1), (1, 10**9, 5), (2**20,) * 40])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_shares_are_met_at_every_block(units, count):
    mixture = Mixture(parts(*range(3, 3 + len(units))), units, seeds=range(len(units) + 1))
    found = drawn(mixture, 2000 // count, count)
    for n in {count, 1000 // count * count, len(found)}:
        met = Counter(source for source, _ in found[:n])
        for number, unit in enumerate(units, 1):
            assert abs(met[number] - n * unit / sum(units)) < number + 1
    # Each source is read through before it is read again.
    for number in range(1, 1 + len(units)):
        own, size = [one for source, one in found if source == number], number + 2
        if count == 1:
            rounds = [sorted(own[start : start + size]) for start in range(0, len(own) // size * size, size)]
            assert rounds == [list(range(size))] * len(rounds)
        assert max(Counter(own).values(), default=0) <= len(own) // size + 1 + count // size


def test_a_block_is_the_same_whatever_was_drawn_before():
    units, seeds = (5, 3), (1, 2, 3)
    one, other = (Mixture(parts(40, 9), units, seeds) for _ in range(2))
    blocks = [one(number, 30) for number in range(12)]
    for number in (11, 0, 5, 6, 5):
        for left, right in zip(other(number, 30), blocks[number], strict=True):
            np.testing.assert_array_equal(left, right)


def test_sources_of_a_block_are_mixed():
    found = [source for source, _ in drawn(Mixture(parts(500, 500), (1, 1), (1, 2, 3)), 1, 400)]
    assert 120 < sum(one != other for one, other in itertools.pairwise(found)) < 280

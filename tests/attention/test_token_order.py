"""How a sequence is dealt out over the devices that share it."""

import re
from typing import Any

import numpy as np
import pytest

from rope_jax.attention import dealt, restored
from tests.unchecked import unchecked


def test_zigzag_gives_every_shard_a_chunk_from_either_end():
    assert dealt(8, 2, "zigzag").reshape(2, 4).tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert dealt(12, 3, "zigzag").reshape(3, 4).tolist() == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]
    for order in ("contiguous", "zigzag"):
        assert dealt(7, 1, order).tolist() == list(range(7))
    assert dealt(8, 4, "contiguous").tolist() == list(range(8))


def test_zigzag_shares_causal_attention_evenly():
    seen = (dealt(48, 4, "zigzag") + 1).reshape(4, 12).sum(axis=1)
    assert len(set(seen.tolist())) == 1
    assert np.ptp((dealt(48, 4) + 1).reshape(4, 12).sum(axis=1)) > 0


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_restored_is_the_inverse(order, shards):
    places = restored(48, shards, order)
    assert places.dtype == np.int32
    np.testing.assert_array_equal(dealt(48, shards, order)[places], np.arange(48))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2999, 4, "contiguous"), "`length` must be divisible by 4 for 4 shards in contiguous order; got 2999"),
        ((12, 4, "zigzag"), "`length` must be divisible by 8 for 4 shards in zigzag order; got 12. Pad the row to 16"),
        ((8, 2, "striped"), "`order` must be one of contiguous, zigzag; got 'striped'"),
        ((0, 2), "`length` must be at least 1; got 0"),
        ((8, 0), "`shards` must be at least 1; got 0"),
    ],
)
def test_what_cannot_be_dealt_is_refused(arguments, message):
    with unchecked(), pytest.raises(ValueError, match=re.escape(message)):
        dealt(*arguments)


def test_counts_are_integers():
    with unchecked(), pytest.raises(TypeError, match="`length` must be an integer"):
        dealt(8.0, 2)  # type: ignore[arg-type]
    sizes: tuple[Any, Any] = (np.int64(8), np.int32(2))
    with unchecked():
        np.testing.assert_array_equal(dealt(*sizes, "zigzag"), dealt(8, 2, "zigzag"))

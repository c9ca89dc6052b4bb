"""Positions drawn for a longer target: where they may stand, how often, and that every distance is met."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.sampled_positions import pose_positions, random_positions
from tests.unchecked import unchecked

ROWS, SEQ, LENGTH = 512, 6, 16
FULL = jnp.ones((ROWS, SEQ), jnp.bool_)
DRAWS = {
    "pose": jax.jit(pose_positions, static_argnames=("length", "chunks")),
    "random": jax.jit(random_positions, static_argnames="length"),
}
BOTH = pytest.mark.parametrize("kind", DRAWS)
MASKS = jnp.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1], [0] * 6]) == 1


def steps(positions):
    return np.diff(np.asarray(positions), axis=1)


@BOTH
def test_positions_rise_within_the_target(kind):
    positions = np.asarray(DRAWS[kind](FULL, length=LENGTH, rng=jax.random.key(0)))
    assert positions.dtype == np.int32 and positions.shape == (ROWS, SEQ)
    assert positions.min() >= 0 and positions.max() == LENGTH - 1
    assert np.all(steps(positions) >= 1)
    # For PoSE one plain row and 3 first chunks x 10 skips; of the 8008 subsets, few are drawn twice.
    distinct = len(np.unique(positions, axis=0))
    assert distinct == 31 if kind == "pose" else distinct > 450


@BOTH
def test_every_distance_of_the_target_is_met(kind):
    positions = np.asarray(DRAWS[kind](FULL, length=LENGTH, rng=jax.random.key(1)))
    distances = positions[:, :, None] - positions[:, None, :]
    assert set(range(1, LENGTH)) <= set(distances.ravel().tolist())


@BOTH
def test_a_target_of_the_rows_own_length_leaves_plain_positions(kind):
    positions = DRAWS[kind](FULL, length=SEQ, rng=jax.random.key(2))
    np.testing.assert_array_equal(positions, np.broadcast_to(np.arange(SEQ), (ROWS, SEQ)))


@BOTH
def test_padding_gets_none_and_takes_none(kind):
    for seed in range(8):
        positions = np.asarray(DRAWS[kind](MASKS, length=LENGTH, rng=jax.random.key(seed)))
        np.testing.assert_array_equal(positions >= 0, MASKS)
        for row, mask in zip(positions, np.asarray(MASKS), strict=True):
            real = row[mask]
            assert np.all(np.diff(real) >= 1) and np.all(real < LENGTH)
    if kind == "pose":
        np.testing.assert_array_equal(positions[np.arange(4), np.argmax(MASKS[:4], axis=1)], 0)


@BOTH
def test_draws_follow_the_key(kind):
    first, again, other = (DRAWS[kind](FULL, length=LENGTH, rng=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("chunks", [1, 2, 3, 6])
def test_chunks_keep_their_neighbours(chunks):
    """The first chunk begins at 0, steps of one inside, and up to chunks - 1 skips."""
    positions = DRAWS["pose"](FULL, length=LENGTH, rng=jax.random.key(3), chunks=chunks)
    assert not np.any(positions[:, 0])
    assert np.max(np.sum(steps(positions) > 1, axis=1)) == chunks - 1


def test_two_chunks_are_drawn_evenly():
    """First chunks of 1 to 3 of 6 tokens, skips of 0 to 10: 3 x 10 ways to skip, and plain rows once in 11."""
    mask = jnp.ones((6600, SEQ), jnp.bool_)
    taken = steps(DRAWS["pose"](mask, length=LENGTH, rng=jax.random.key(4))) - 1
    assert np.sum(~taken.any(axis=1)) == pytest.approx(600, abs=120)
    counts = [np.sum(taken[:, place] == skip) for place in range(3) for skip in range(1, 11)]
    np.testing.assert_allclose(counts, 200, atol=75)
    assert not np.any(taken[:, 3:])


def test_every_subset_is_equally_likely():
    """The ten pairs out of five places."""
    pairs = DRAWS["random"](jnp.ones((5000, 2), jnp.bool_), length=5, rng=jax.random.key(5))
    _, counts = np.unique(np.asarray(pairs), axis=0, return_counts=True)
    assert len(counts) == 10
    np.testing.assert_allclose(counts, 500, atol=110)


@pytest.mark.parametrize("draw", [pose_positions, random_positions])
def test_targets_that_do_not_hold_the_rows_are_refused(draw):
    mask, rng = jnp.ones((2, SEQ), jnp.bool_), jax.random.key(0)
    with pytest.raises(ValueError, match=r"`length` must hold the 6 tokens of a row .*; got 5"):
        draw(mask, length=5, rng=rng)
    with unchecked(), pytest.raises(TypeError, match=r"`length` must be an integer; got 8\.0"):
        draw(mask, length=8.0, rng=rng)
    with unchecked(), pytest.raises(TypeError, match=r"`mask` must be boolean"):
        draw(jnp.ones((2, SEQ), jnp.int32), length=8, rng=rng)


def test_less_than_a_chunk_is_refused():
    wrong: tuple[Any, ...] = (0, 1.5, True)
    for chunks in wrong:
        with unchecked(), pytest.raises(ValueError, match="`chunks` must be a whole number from 1 on; got"):
            pose_positions(FULL, length=LENGTH, rng=jax.random.key(0), chunks=chunks)


def test_targets_reach_as_far_as_positions():
    positions = DRAWS["pose"](FULL, length=2**31 - 1, rng=jax.random.key(6))
    assert np.all(steps(positions) >= 1) and int(positions.max()) > 2**30


def test_counts_of_numpy_are_counts():
    counts: dict[str, Any] = {"length": np.int64(LENGTH), "chunks": np.int32(2)}
    with unchecked():
        positions = pose_positions(FULL, rng=jax.random.key(3), **counts)
    np.testing.assert_array_equal(positions, DRAWS["pose"](FULL, length=LENGTH, rng=jax.random.key(3), chunks=2))

"""Blocks of tokens: every token once, and no visible pair in a tile that is skipped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_jax.attention.blocks import blocks, meetings
from rope_jax.attention.chunked import block_side
from tests.attention.reference64 import visible_keys


@pytest.mark.parametrize("seq", [1, 15, 16, 17, 32, 37])
def test_every_token_is_real_in_one_block_only(seq):
    positions = jnp.arange(seq)[None]
    cut = blocks(positions, None, 16, once=True)
    found = np.asarray(cut.positions)[np.asarray(cut.positions) >= 0]
    np.testing.assert_array_equal(np.sort(found), np.arange(seq))
    whole = blocks(positions, None, 16, once=False)
    for block in range(whole.number):
        np.testing.assert_array_equal(whole.cut(positions, jnp.asarray(block)), whole.positions[block])


def test_a_causal_row_meets_the_lower_triangle_and_a_window_a_band():
    cut = blocks(jnp.arange(64)[None], None, 16, once=True)
    np.testing.assert_array_equal(meetings(cut, cut, None), np.tri(4, dtype=bool))
    np.testing.assert_array_equal(meetings(cut, cut, 2), np.tri(4, dtype=bool) & ~np.tri(4, k=-2, dtype=bool))


def test_packed_documents_that_fill_blocks_meet_themselves_only():
    cut = blocks(jnp.tile(jnp.arange(16), 4)[None], jnp.repeat(jnp.arange(1, 5), 16)[None], 16, once=True)
    np.testing.assert_array_equal(meetings(cut, cut, None), np.eye(4, dtype=bool))


tokens = st.lists(st.tuples(st.integers(-2, 12), st.integers(0, 3)), min_size=9, max_size=9)


@jax.jit
def tiles_that_meet(q_positions, q_segments, kv_positions, kv_segments, window):
    queries = blocks(q_positions[None], q_segments[None], 4, once=True)
    return meetings(queries, blocks(kv_positions[None], kv_segments[None], 4, once=True), window)


@settings(max_examples=40, deadline=None)
@given(queries=tokens, keys=tokens, window=st.sampled_from([1, 3, 2**31 - 1]))
def test_a_tile_that_is_skipped_holds_no_visible_pair(queries, keys, window):
    (q_positions, q_segments), (kv_positions, kv_segments) = (np.array(side).T for side in (queries, keys))
    sides = ((q_positions, q_segments), (kv_positions, kv_segments))
    real = [np.where((positions < 0) | (segments == 0), -1, positions) for positions, segments in sides]
    meet = np.asarray(tiles_that_meet(real[0], q_segments, real[1], kv_segments, window))
    for i in range(9):
        for j in visible_keys(q_positions[i], kv_positions, q_segments[i], kv_segments, window):
            assert meet[i // 4, j // 4]


def test_block_sides_keep_a_tile_within_four_mebibytes():
    sides = {rows: block_side(rows) for rows in (1, 4, 8, 64, 256)}
    assert sides == {1: 512, 4: 512, 8: 256, 64: 128, 256: 64}
    assert block_side(100_000) == 64

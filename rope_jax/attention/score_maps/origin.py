"""Positions counted from the start of a document, for rules that are not the same everywhere in it."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from rope_jax.attention.base import token_positions
from rope_jax.positions import LARGEST_POSITION, check_positions


def from_start(
    q_positions: Int32[Array, "rows q"],
    kv_positions: Int32[Array, "kv_rows kv"],
    q_segments: Array | np.ndarray | None = None,
    kv_segments: Array | np.ndarray | None = None,
) -> tuple[Int32[Array, "_ q"], Int32[Array, "_ kv"]]:
    """Both sides counted from the first key of the row or, with segments, of the token's own segment; padding is 0."""
    if q_segments is None or kv_segments is None:
        first = jnp.min(_or_last(token_positions(kv_positions, None)), axis=1, keepdims=True)
        return _since(q_positions, first), _since(kv_positions, first)
    segments = check_positions(q_segments, "q_segments"), check_positions(kv_segments, "kv_segments")
    rows = max(x.shape[0] for x in (q_positions, kv_positions, *segments))
    q, kv, q_ids, kv_ids = (jnp.broadcast_to(x, (rows, x.shape[1])) for x in (q_positions, kv_positions, *segments))
    first = jax.vmap(_first_of_segment)(token_positions(kv, kv_ids), q_ids, kv_ids)
    return _since(q, first[:, : q.shape[1]]), _since(kv, first[:, q.shape[1] :])


def _since(positions: Array, first: Array) -> Array:
    return jnp.maximum(jnp.maximum(positions, -1) - first, 0)


def _or_last(positions: Array) -> Array:
    return jnp.where(positions < 0, LARGEST_POSITION, positions)


def _first_of_segment(kv_positions: Array, q_segments: Array, kv_segments: Array) -> Int32[Array, "both"]:
    """For every query and then every key, the smallest position of a key in its segment; ids in any order."""
    both = jnp.concatenate([q_segments, kv_segments])
    _, index = jnp.unique(both, size=both.shape[0], return_inverse=True)
    keys = index[q_segments.shape[0] :]
    return jax.ops.segment_min(_or_last(kv_positions), keys, num_segments=both.shape[0])[index]

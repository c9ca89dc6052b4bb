"""The `order` hint: what the caller promises of the positions, checked where they are known.

A shard of a sequence dealt out in zigzag (shard i of n holds chunks i and 2n - 1 - i) needs no order of its own: its
tokens rise with the index, so among themselves they are "increasing". The keys of other shards are other tokens: "any".
"""

import numpy as np
from jaxtyping import Array

from rope_jax.attention.base import ORDERS, Request
from rope_jax.positions import is_traced


def check_order_name(order: object) -> None:
    """An order that exists."""
    if order not in ORDERS:
        raise ValueError(f'`order` must be one of {", ".join(ORDERS)}; got {order!r}. "any" is always right.')


def check_order(request: Request) -> None:
    """Positions that are known must be what `order` says; traced ones are taken at its word."""
    sides = (request.q_positions, request.kv_positions, request.q_segments, request.kv_segments)
    if request.order == "any" or any(is_traced(side) for side in sides):
        return
    q_positions, q_segments = _rows(request.q_positions, request.q_segments)
    kv_positions, kv_segments = _rows(request.kv_positions, request.kv_segments)
    same = q_positions.shape[1] == kv_positions.shape[1]
    if not (same and np.all(q_positions == kv_positions) and np.all(q_segments == kv_segments)):
        raise ValueError(
            f'`order` must be "any" where queries and keys are not the same tokens; got {request.order!r}. '
            "A cache, a chunk of a prompt or a shard has other keys than queries."
        )
    for positions, segments in zip(*np.broadcast_arrays(kv_positions, kv_segments), strict=True):
        _check_row(request.order, positions, segments)


def _rows(positions: Array, segments: Array | None) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the host, and segments with all padding in segment 0."""
    host = np.asarray(positions)
    return host, np.where(host < 0, 0, 1 if segments is None else np.asarray(segments))


def _check_row(order: str, positions: np.ndarray, segments: np.ndarray) -> None:
    """Inside each segment, every step of the positions from token to token."""
    index = np.flatnonzero(segments)
    index = index[np.argsort(segments[index], kind="stable")]
    inside = segments[index[1:]] == segments[index[:-1]]
    before, after = index[:-1][inside], index[1:][inside]
    steps = positions[after].astype(np.int64) - positions[before]
    wrong = steps <= 0 if order == "increasing" else (steps != 1) | (after - before != 1)
    if np.any(wrong):
        at = np.flatnonzero(wrong)[0]
        rule = "positions that rise with the index" if order == "increasing" else "adjacent tokens in steps of 1"
        raise ValueError(
            f"`order` must be true of the positions: {order!r} means {rule} inside a segment; got position "
            f"{positions[after[at]]} at index {after[at]} after {positions[before[at]]} at index {before[at]}. "
            'Use order="any".'
        )

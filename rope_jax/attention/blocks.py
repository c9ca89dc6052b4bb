"""How `chunked` cuts a sequence into blocks, and which pairs of blocks can see each other at all."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from rope_jax.attention.base import Band

FURTHEST = 2**31 - 1


class Blocks(NamedTuple):
    """The tokens of one side, block by block; `keys` are those of a band.

    The last block of a length that `size` does not divide is moved back to end with the sequence, so that no array
    is ever padded and copied. The tokens that it shares with the block before are then its padding (position -1).
    """

    starts: Int32[Array, "blocks"]
    positions: Int32[Array, "blocks rows size"]
    segments: Int32[Array, "blocks rows2 size"] | None
    keys: Int32[Array, "blocks rows3 size"] | None

    @property
    def size(self) -> int:
        """Tokens in a block."""
        return self.positions.shape[-1]

    @property
    def number(self) -> int:
        """How many blocks there are."""
        return self.positions.shape[0]

    def cut(self, x: Array, block: Array) -> Array:
        """The tokens of one block, from an array [batch, seq, ...]."""
        return jax.lax.dynamic_slice_in_dim(x, self.starts[block], self.size, axis=1)

    def put(self, x: Array, part: Array, block: Array) -> Array:
        """`x` with the tokens of one block replaced."""
        return jax.lax.dynamic_update_slice_in_dim(x, part, self.starts[block], axis=1)

    def add(self, x: Array, part: Array, block: Array) -> Array:
        """`x` with `part` added to the tokens of one block."""
        return self.put(x, self.cut(x, block) + part, block)


def blocks(positions: Array, segments: Array | None, size: int, *, once: bool, keys: Array | None = None) -> Blocks:
    """Cut into blocks of `size` tokens; `once` makes padding of the tokens that an earlier block already holds."""
    seq = positions.shape[1]
    size = min(size, seq)
    nominal = jnp.arange(0, seq, size, dtype=jnp.int32)
    starts = jnp.minimum(nominal, seq - size)
    index = starts[:, None] + jnp.arange(size, dtype=jnp.int32)[None, :]

    def cut(values: Array) -> Array:
        return jnp.moveaxis(values[:, index], 0, 1)

    real = cut(positions)
    if once:
        real = jnp.where((index >= nominal[:, None])[:, None, :], real, -1)
    return Blocks(starts, real, *(None if values is None else cut(values) for values in (segments, keys)))


def meetings(
    queries: Blocks, keys: Blocks, window: Array | int | None, band: Band | None = None
) -> Bool[Array, "q_blocks kv_blocks"]:
    """Which pairs of blocks may hold a visible pair, from the extremes of their positions, segments and band keys.

    Never False for a pair that holds one; a True that holds none costs time, not correctness.
    """
    q_first, q_last = _extremes(queries.positions, queries.positions >= 0)
    kv_first, kv_last = _extremes(keys.positions, keys.positions >= 0)
    meet = (kv_last[None] >= 0) & (q_last[:, None] >= 0) & (kv_first[None] <= q_last[:, None])
    if window is not None:
        meet = meet & (q_first[:, None] - kv_last[None] < window)
    if queries.segments is not None and keys.segments is not None:
        q_low, q_high = _extremes(queries.segments, queries.positions >= 0)
        kv_low, kv_high = _extremes(keys.segments, keys.positions >= 0)
        meet = meet & (kv_low[None] <= q_high[:, None]) & (q_low[:, None] <= kv_high[None])
    if band is not None:
        q_low, q_high = _extremes(queries.keys, queries.positions >= 0)
        kv_low, kv_high = _extremes(keys.keys, keys.positions >= 0)
        meet = meet & (q_high[:, None] - kv_low[None] >= band.low)
        if band.high is not None:
            meet = meet & (q_low[:, None] - kv_high[None] < band.high)
    return jnp.any(meet, axis=-1)


def _extremes(values: Any, real: Array) -> tuple[Array, Array]:
    """Smallest and largest value over the real tokens of every block, row by row."""
    low = jnp.min(jnp.where(real, values, FURTHEST), axis=2)
    return low, jnp.max(jnp.where(real, values, -1), axis=2)

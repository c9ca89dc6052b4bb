"""One tile of `chunked`: the logits between a block of queries and a block of keys.

Queries are held as [batch, kv_heads, groups, q, head_dim] and keys as [batch, kv_heads, kv, head_dim], so the query
heads of one key head share its block and keys are never repeated.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32

from rope_jax.attention.base import Band, sees
from rope_jax.attention.blocks import Blocks, blocks, meetings


class Setting(NamedTuple):
    """What is fixed when the program is compiled."""

    softcap: float | None
    q_block: int
    kv_block: int
    out_dtype: np.dtype


class Logits(NamedTuple):
    """What turns products into logits, and the sinks beside them: [heads] float32 each."""

    scale: Array
    slopes: Array | None
    sinks: Array | None


class Tokens(NamedTuple):
    """Where the tokens stand, as in `Request`; padding is position -1."""

    q_positions: Array
    kv_positions: Array
    q_segments: Array | None
    kv_segments: Array | None
    window: Array | None
    band: Band | None


class Grid(NamedTuple):
    """The blocks of both sides, and which tiles hold a visible pair."""

    queries: Blocks
    keys: Blocks
    window: Array | None
    band: Band | None
    meet: Array


def varying_alike(tree: Any) -> Any:
    """`tree` with every array varying, inside `shard_map`, over all the mesh axes that one of them varies over.

    Loops and conditionals want states of one such type. Adding a zero that has it makes the gradients of what all
    shards share, such as sinks, sums over the shards.
    """

    def zero(x: Array) -> Array:
        return jnp.zeros_like(x, jnp.float32, shape=())

    tie = sum(map(zero, jax.tree.leaves(tree)), jnp.zeros((), jnp.float32))
    return jax.tree.map(lambda x: x if jax.typeof(zero(x)) == jax.typeof(tie) else x + tie.astype(x.dtype), tree)


def grid(setting: Setting, tokens: Tokens, *, once: bool) -> Grid:
    """Cut both sides; `once` keeps every query in one block only, where its contributions are summed."""
    band = tokens.band
    q_keys, kv_keys = (None, None) if band is None else (band.q_keys, band.kv_keys)
    queries = blocks(tokens.q_positions, tokens.q_segments, setting.q_block, once=once, keys=q_keys)
    keys = blocks(tokens.kv_positions, tokens.kv_segments, setting.kv_block, once=True, keys=kv_keys)
    return Grid(queries, keys, tokens.window, band, meetings(queries, keys, tokens.window, band))


def grouped(x: Float[Array, "batch q heads dim"], kv_heads: int) -> Float32[Array, "batch kv_heads groups q dim"]:
    """Queries, or whatever else has a row per query and head, in float32."""
    batch, size, heads, dim = x.shape
    split = x.astype(jnp.float32).reshape(batch, size, kv_heads, heads // kv_heads, dim)
    return split.transpose(0, 2, 3, 1, 4)


def ungrouped(x: Float32[Array, "batch kv_heads groups q dim"]) -> Float32[Array, "batch q heads dim"]:
    """The inverse of `grouped`."""
    batch, kv_heads, groups, size, dim = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch, size, kv_heads * groups, dim)


def per_head(x: Float32[Array, "heads"], kv_heads: int) -> Float32[Array, "1 kv_heads groups 1 1"]:
    """One number per query head, to go with `grouped`."""
    return x.reshape(1, kv_heads, -1, 1, 1)


def key_major(x: Float[Array, "batch kv kv_heads dim"]) -> Float32[Array, "batch kv_heads kv dim"]:
    """Keys or values in float32, NaN and infinities zeroed: what those spoil is marked on the rows that see them."""
    x = x.astype(jnp.float32).transpose(0, 2, 1, 3)
    return jnp.where(jnp.isfinite(x), x, 0.0)


def products(q: Array, k: Array) -> Float32[Array, "batch kv_heads groups q kv"]:
    """Query times key, or anything else with the axes of `grouped` and `key_major`."""
    return jnp.einsum("bkgqd,bktd->bkgqt", q, k)


def apart(grid: Grid, tile: tuple[Array, Array]) -> Int32[Array, "rows 1 1 q kv"]:
    """Tokens from key to query."""
    q_positions, kv_positions = grid.queries.positions[tile[0]], grid.keys.positions[tile[1]]
    return (q_positions[:, :, None] - kv_positions[:, None, :])[:, None, None]


def visible(grid: Grid, tile: tuple[Array, Array]) -> Bool[Array, "rows 1 1 q kv"]:
    """Which key of the tile every query sees."""
    i, j = tile
    same = None
    if grid.queries.segments is not None and grid.keys.segments is not None:
        same = grid.queries.segments[i][:, :, None] == grid.keys.segments[j][:, None, :]
    q_positions, kv_positions = grid.queries.positions[i], grid.keys.positions[j]
    seen = sees(q_positions[:, :, None], kv_positions[:, None, :], grid.window, same)
    if grid.band is not None and grid.queries.keys is not None and grid.keys.keys is not None:
        seen = seen & grid.band.holds(grid.queries.keys[i][:, :, None] - grid.keys.keys[j][:, None, :])
    return seen[:, None, None]


def tile_logits(setting: Setting, slopes: Array | None, grid: Grid, scores: Array, tile: tuple[Array, Array]) -> Array:
    """Logits from scaled products: ALiBi's penalty first, then the cap."""
    if slopes is not None:
        scores = scores - per_head(slopes, scores.shape[1]) * apart(grid, tile).astype(jnp.float32)
    if setting.softcap is not None:
        scores = setting.softcap * jnp.tanh(scores / setting.softcap)
    return scores

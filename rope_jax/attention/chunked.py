"""Attention that never holds the [q, kv] matrix: an online softmax over one block of keys after another.

    m' = max(m, max_j s_j)    l' = l exp(m - m') + sum_j exp(s_j - m')    a' = a exp(m - m') + sum_j exp(s_j - m') v_j

and a / l is the result. Tiles that hold no visible pair are skipped. The backward pass keeps the result and the
log-sum-exp, and computes the weights again tile by tile; there is no forward mode (`jax.jvp` needs another backend).

The batch is an axis of every tile. Under `vmap` the skip becomes a select that computes both branches, so fold mapped
axes into the batch instead.

Reference: arXiv 2112.05682 (softmax by blocks), arXiv 2205.14135 (recomputation from the log-sum-exp).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rope_jax.attention import tiles
from rope_jax.attention.base import Request, token_positions, unusable
from rope_jax.attention.chunked_gradient import gradients
from rope_jax.attention.tiles import Grid, Logits, Setting, Tokens

LOWEST = float(np.finfo(np.float32).min)
TILE_BYTES = 4 * 2**20
"""Float32 logits of one tile over all rows and heads: on a CPU tiles of 2 to 4 MiB were the fastest."""


def refuses(request: Request) -> str | None:
    """Nothing: every request can be served."""
    return None


def attention(request: Request) -> tuple[Array, Array]:
    """Result and log-sum-exp, in memory that grows linearly with the length."""
    tokens = tokens_of(request)
    side = block_side(request.q.shape[0] * request.q.shape[2])
    setting = Setting(request.softcap, side, side, request.out_dtype)
    logits = Logits(request.head_scale(), request.slopes, request.sinks)
    # NaN in all heads, as in the other backends: a lone NaN or infinity would spoil its own head, or none.
    q = jnp.where(unusable(request.q)[..., None, None], jnp.nan, request.q)
    return _attention(setting, *tiles.varying_alike((q, request.k, request.v, logits, tokens)))


def tokens_of(request: Request) -> Tokens:
    """Where the tokens stand, and what limits who sees whom."""
    return Tokens(
        token_positions(request.q_positions, request.q_segments),
        token_positions(request.kv_positions, request.kv_segments),
        request.q_segments,
        request.kv_segments,
        None if request.window is None else jnp.asarray(request.window, jnp.int32),
        None if request.band is None else jax.tree.map(partial(jnp.asarray, dtype=jnp.int32), request.band),
    )


def block_side(rows: int) -> int:
    """Tokens in a block, for `rows` = batch * heads: a power of two from 64 to 512 that keeps a tile in the cache."""
    side = 512
    while side > 64 and rows * side * side * 4 > TILE_BYTES:
        side //= 2
    return side


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(setting: Setting, q: Array, k: Array, v: Array, logits: Logits, tokens: Tokens) -> tuple[Array, Array]:
    return forward(setting, q, k, v, logits, tokens)


def _saving(setting: Setting, q: Array, k: Array, v: Array, logits: Logits, tokens: Tokens) -> Any:
    """The result, and what the backward pass needs."""
    out, lse = forward(setting, q, k, v, logits, tokens)
    return (out, lse), (q, k, v, logits, tokens, out, lse)


# Compiled here, so that a call outside jit compiles once and not once per call.
@partial(jax.jit, static_argnums=0)
def forward(setting: Setting, q: Array, k: Array, v: Array, logits: Logits, tokens: Tokens) -> tuple[Array, Array]:
    """The result and the log-sum-exp, one block of queries after another."""
    batch, seq, heads, _ = q.shape
    kv_heads, v_dim = v.shape[2:]
    grid = tiles.grid(setting, tokens, once=False)
    scale = tiles.per_head(logits.scale, kv_heads)
    over_keys = _key_step(setting, k, v, logits.slopes, grid)

    def over_queries(filled: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
        q_block = tiles.grouped(grid.queries.cut(q, i), kv_heads) * scale
        steps = jnp.arange(grid.keys.number, dtype=jnp.int32)
        state, _ = jax.lax.scan(partial(over_keys, q_block, i), _nothing_seen(q_block, v_dim, logits.sinks), steps)
        total, top, weighted = state
        result = tiles.ungrouped(weighted / jnp.where(total == 0.0, 1.0, total)).astype(setting.out_dtype)
        log_sum = tiles.ungrouped(top + jnp.log(total))[..., 0]
        return (grid.queries.put(filled[0], result, i), grid.queries.put(filled[1], log_sum, i)), None

    # Made like q, so that inside shard_map they vary over the same mesh axes.
    rows = jnp.zeros_like(q, jnp.float32, shape=q.shape[:3])
    empty = jnp.zeros_like(q, setting.out_dtype, shape=(batch, seq, heads, v_dim)), rows
    filled, _ = jax.lax.scan(over_queries, empty, jnp.arange(grid.queries.number, dtype=jnp.int32))
    return filled


def _nothing_seen(q_block: Array, v_dim: int, sinks: Array | None) -> tuple[Array, Array, Array]:
    """Total, largest logit and weighted values before any key; a sink is a key that all see, with value zero."""
    total = jnp.zeros_like(q_block, shape=(*q_block.shape[:-1], 1))
    weighted = jnp.zeros_like(q_block, shape=(*q_block.shape[:-1], v_dim))
    if sinks is None:
        return total, total + LOWEST, weighted
    return total + 1.0, total + tiles.per_head(sinks, q_block.shape[1]), weighted


def _key_step(setting: Setting, k: Array, v: Array, slopes: Array | None, grid: Grid) -> Callable[..., Any]:
    """The step of the online softmax over one block of keys, or nothing where the tile holds no visible pair."""
    poison = jnp.where(unusable(k) | unusable(v), jnp.nan, 0.0).astype(jnp.float32)

    def step(q_block: Array, i: Array, state: Any, j: Array) -> tuple[Any, None]:
        def update(state: Any) -> Any:
            total, top, weighted = state
            scores = tiles.products(q_block, tiles.key_major(grid.keys.cut(k, j)))
            scores = tiles.tile_logits(setting, slopes, grid, scores, (i, j))
            scores = scores + grid.keys.cut(poison, j)[:, None, None, None, :]
            scores = jnp.where(tiles.visible(grid, (i, j)), scores, -jnp.inf)
            new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
            weights = jnp.exp(scores - new_top)
            shrink = jnp.exp(top - new_top)
            part = jnp.einsum("bkgqt,bktd->bkgqd", weights, tiles.key_major(grid.keys.cut(v, j)))
            return total * shrink + jnp.sum(weights, axis=-1, keepdims=True), new_top, weighted * shrink + part

        return jax.lax.cond(grid.meet[i, j], update, lambda state: state, state), None

    return step


_attention.defvjp(_saving, gradients)

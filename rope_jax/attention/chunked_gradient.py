"""The backward pass of `chunked`: the weights are computed again, tile by tile, from the saved log-sum-exp.

    p_ij = exp(s_ij - lse_i)    ds_ij = p_ij (do_i . v_j - delta_i)    delta_i = do_i . o_i - dlse_i
    dv_j = sum_i p_ij do_i     dq_i = scale sum_j ds_ij k_j           dk_j = scale sum_i ds_ij q_i

A softcap multiplies ds_ij by 1 - (s_ij / softcap)^2. Rows without a finite log-sum-exp (they see nothing,
or a NaN) pass no gradient on.

Reference: arXiv 2205.14135, appendix B.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rope_jax.attention import tiles
from rope_jax.attention.tiles import Grid, Logits, Setting


class Rows(NamedTuple):
    """What the backward pass knows of every query: q and d_out [batch, q, heads, *], the rest [batch, q, heads]."""

    q: Array
    d_out: Array
    lse: Array
    delta: Array


class KeySums(NamedTuple):
    """What is summed over the queries: for one block of keys, and for the logits as a whole."""

    k: Array
    v: Array
    scale: Array
    slopes: Array | None


@partial(jax.jit, static_argnums=0)
def gradients(setting: Setting, saved: Any, cotangents: tuple[Array, Array]) -> tuple[Any, ...]:
    """Cotangents of q, k, v and `Logits`; tokens have none."""
    q, k, v, logits, tokens, out, lse = saved
    rows = _rows(q, out, lse, cotangents)
    grid = tiles.grid(setting, tokens, once=True)
    over_queries = _query_step(setting, rows, logits, grid)

    def over_keys(state: tuple[Array, KeySums], j: Array) -> tuple[tuple[Array, KeySums], None]:
        d_q, whole = state
        k_block, v_block = tiles.key_major(grid.keys.cut(k, j)), tiles.key_major(grid.keys.cut(v, j))
        start = whole._replace(k=jnp.zeros_like(k_block), v=jnp.zeros_like(v_block))
        step = partial(over_queries, k_block, v_block, j)
        (d_q, sums), _ = jax.lax.scan(step, (d_q, start), jnp.arange(grid.queries.number, dtype=jnp.int32))
        # Added, not put: the last block of keys may hold tokens of the one before.
        d_k = grid.keys.add(whole.k, sums.k.transpose(0, 2, 1, 3), j)
        d_v = grid.keys.add(whole.v, sums.v.transpose(0, 2, 1, 3), j)
        return (d_q, sums._replace(k=d_k, v=d_v)), None

    per_head = jnp.zeros_like(q, jnp.float32, shape=(k.shape[2], q.shape[2] // k.shape[2]))
    whole = KeySums(_zeros(k), _zeros(v), per_head, None if logits.slopes is None else per_head)
    (d_q, whole), _ = jax.lax.scan(over_keys, (_zeros(q), whole), jnp.arange(grid.keys.number, dtype=jnp.int32))
    d_logits = Logits(whole.scale.reshape(-1), None, None)
    if whole.slopes is not None:
        d_logits = d_logits._replace(slopes=whole.slopes.reshape(-1))
    if logits.sinks is not None:
        d_logits = d_logits._replace(sinks=_sinks(logits.sinks, rows))
    return d_q.astype(q.dtype), whole.k.astype(k.dtype), whole.v.astype(v.dtype), d_logits, None


def _zeros(x: Array) -> Array:
    return jnp.zeros_like(x, jnp.float32)


def _rows(q: Array, out: Array, lse: Array, cotangents: tuple[Array, Array]) -> Rows:
    d_out, d_lse = cotangents
    usable = jnp.isfinite(lse)
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1) - d_lse
    # exp(s - inf) is zero, so a row that is not usable weighs nothing.
    return Rows(q, d_out, jnp.where(usable, lse, jnp.inf), jnp.where(usable, delta, 0.0))


def _sinks(sinks: Array, rows: Rows) -> Array:
    """A sink is a key with value zero: ds = p (0 - delta)."""
    return -jnp.sum(jnp.exp(sinks[None, None] - rows.lse) * rows.delta, axis=(0, 1))


def _query_step(setting: Setting, rows: Rows, logits: Logits, grid: Grid) -> Callable[..., Any]:
    """What one block of queries adds to the gradients of one block of keys, and to its own."""

    def step(k_block: Array, v_block: Array, j: Array, state: Any, i: Array) -> tuple[Any, None]:
        d_q, sums = state
        kv_heads = k_block.shape[1]
        scale = tiles.per_head(logits.scale, kv_heads)

        def part(x: Array) -> Array:
            return tiles.grouped(grid.queries.cut(x if x.ndim == 4 else x[..., None], i), kv_heads)

        def update(sums: KeySums) -> tuple[Array, KeySums]:
            usable = jnp.isfinite(part(rows.lse))
            # A query may hold NaN and yet be usable: with a sink and no key in sight.
            q_block = jnp.where(usable & jnp.isfinite(part(rows.q)), part(rows.q), 0.0)
            d_out = jnp.where(usable, part(rows.d_out), 0.0)
            scores = tiles.tile_logits(setting, logits.slopes, grid, tiles.products(q_block * scale, k_block), (i, j))
            weights = jnp.where(tiles.visible(grid, (i, j)), jnp.exp(scores - part(rows.lse)), 0.0)
            d_scores = weights * (tiles.products(d_out, v_block) - part(rows.delta))
            if setting.softcap is not None:
                d_scores = d_scores * (1.0 - jnp.square(scores / setting.softcap))
            d_q_block = jnp.einsum("bkgqt,bktd->bkgqd", d_scores, k_block)
            added = KeySums(
                jnp.einsum("bkgqt,bkgqd->bktd", d_scores, q_block * scale),
                jnp.einsum("bkgqt,bkgqd->bktd", weights, d_out),
                jnp.sum(q_block * d_q_block, axis=(0, 3, 4)),
                None
                if logits.slopes is None
                else -jnp.sum(d_scores * tiles.apart(grid, (i, j)).astype(jnp.float32), axis=(0, 3, 4)),
            )
            return tiles.ungrouped(d_q_block * scale), jax.tree.map(jnp.add, sums, added)

        def skip(sums: KeySums) -> tuple[Array, KeySums]:
            return jnp.zeros_like(grid.queries.cut(d_q, i)), sums

        d_q_block, sums = jax.lax.cond(grid.meet[i, j], update, skip, sums)
        return (grid.queries.add(d_q, d_q_block, i), sums), None

    return step

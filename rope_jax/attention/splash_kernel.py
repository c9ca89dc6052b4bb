"""The kernel behind `splash`, its block sizes and its masks.

Arrays come as the kernel wants them: q [batch, heads, q, head_dim], k and v [batch, kv_heads, kv, *], the lengths whole
numbers of blocks; ids are the segments of both sides, [batch or 1, q] and [batch or 1, kv], or None for a single one.

The kernel is given tables of the blocks that queries see. Those of one shard are cut, where the program runs, from the
tables of all shards, so that one program serves them all.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int32

from rope_jax.attention.base import Shard
from rope_jax.attention.token_order import dealt

Ids = tuple[Array, Array] | None


class Setting(NamedTuple):
    """What is fixed when the program is compiled; `length` is that of the keys, not padded."""

    window: int | None
    softcap: float | None
    block: int
    interpret: bool
    length: int
    shard: Shard | None


# Compiled here, so that a call outside jit builds its mask and compiles once and not once per call.
@partial(jax.jit, static_argnums=0)
def result(setting: Setting, q: Array, k: Array, v: Array, ids: Ids, sinks: Array | None) -> Array:
    """The result [batch, heads, seq, v_dim], which has a gradient."""
    return _over_rows(setting, False, q, k, v, ids, sinks)


@partial(jax.jit, static_argnums=0)
def log_sum_exp(setting: Setting, q: Array, k: Array, v: Array, ids: Ids, sinks: Array | None) -> Array:
    """The log-sum-exp [batch, heads, seq], which has none."""
    return _over_rows(setting, True, q, k, v, ids, sinks)[1][0]


def _over_rows(setting: Setting, residuals: bool, q: Array, k: Array, v: Array, ids: Ids, sinks: Array | None) -> Any:
    """The kernel, row by row of the batch: q [batch, heads, seq, head_dim], k and v [batch, kv_heads, seq, *]."""
    kernel = _kernel(setting, residuals, q.shape[1], k.shape[2])

    def row(q: Array, k: Array, v: Array, ids: Ids) -> Any:
        return kernel(q, k, v, None if ids is None else splash_attention.SegmentIds(*ids), sinks)

    if ids is not None and ids[0].shape[0] == 1:
        return jax.vmap(partial(row, ids=(ids[0][0], ids[1][0])))(q, k, v)
    return jax.vmap(row, in_axes=(0, 0, 0, None if ids is None else 0))(q, k, v, ids)


def _kernel(setting: Setting, residuals: bool, heads: int, kv: int) -> Any:
    """The kernel with the tables of this shard's queries."""
    shard = setting.shard
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask(tokens(setting), kv, setting.window)] * heads),
        block_sizes=_block_sizes(setting.block),
        attn_logits_soft_cap=setting.softcap,
        save_residuals=residuals,
        interpret=setting.interpret,
        head_shards=1,
        q_seq_shards=1 if shard is None else shard.number,
    )
    if shard is None:
        return kernel
    mesh = AbstractMesh((shard.number,), (shard.axis,))
    spec = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec(None, shard.axis)))
    index = jax.lax.axis_index(shard.axis)

    def own(table: Array, spec: PartitionSpec) -> Array:
        for axis, name in enumerate(spec):
            if name is not None:
                size = table.shape[axis] // shard.number
                table = jax.lax.dynamic_slice_in_dim(table, index * size, size, axis)
        return table

    return jax.tree.map(own, kernel, spec)


def tokens(setting: Setting) -> Int32[np.ndarray, "q"]:
    """The token of every query, shard after shard, each padded by its last up to a whole number of blocks."""
    shard = setting.shard or Shard("", 1, "contiguous")
    parts = dealt(setting.length, shard.number, shard.dealing).reshape(shard.number, -1)
    return np.pad(parts, ((0, 0), (0, -parts.shape[1] % setting.block)), mode="edge").reshape(-1)


def _block_sizes(block: int) -> splash_attention.BlockSizes:
    return splash_attention.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )


def mask(tokens: Int32[np.ndarray, "q"], kv: int, window: int | None) -> splash_attention.Mask:
    """Which keys a query sees by index, row by row of [q, kv]; `tokens` rise inside a block."""
    return _Causal(tokens, kv) if window is None else _Sliding(tokens, kv, window)


class _Causal(splash_attention.CausalMask):
    """The causal mask, whose blocks above and below the diagonal are single numbers.

    The kernel's tables ask of a block only whether any and whether all pairs are seen. Written out, its blocks take
    three minutes at 131072 tokens.
    """

    def __init__(self, tokens: np.ndarray, kv: int) -> None:
        super().__init__((tokens.size, kv))
        self.q_sequence = tokens

    def __getitem__(self, index: Any) -> np.ndarray:
        nearest, furthest = _apart(self.q_sequence, index)
        if nearest >= 0 or furthest < 0:
            return np.full((1, 1), nearest >= 0)
        return super().__getitem__(index)


class _Sliding(splash_attention.LocalMask):
    """The mask of a sliding window, whose blocks outside it and far inside it are single numbers."""

    def __init__(self, tokens: np.ndarray, kv: int, window: int) -> None:
        super().__init__((tokens.size, kv), (window - 1, 0), 0)
        self.q_sequence = tokens

    def __getitem__(self, index: Any) -> np.ndarray:
        past = self.window_size[0]
        assert past is not None
        nearest, furthest = _apart(self.q_sequence, index)
        if nearest >= 0 and furthest <= past:
            return np.ones((1, 1), bool)
        if furthest < 0 or nearest > past:
            return np.zeros((1, 1), bool)
        return super().__getitem__(index)


def _apart(tokens: np.ndarray, index: Any) -> tuple[int, int]:
    """The smallest and largest distance from key to query in a block."""
    rows, columns = index
    return int(tokens[rows.start]) - (columns.stop - 1), int(tokens[rows.stop - 1]) - columns.start

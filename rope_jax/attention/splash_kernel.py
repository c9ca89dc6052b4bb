"""The kernel behind `splash`, its block sizes and its masks.

Arrays come as the kernel wants them: q [batch, heads, seq, head_dim], k and v [batch, kv_heads, seq, *], the length a
whole number of blocks; ids [batch or 1, seq] are segments, or None for a single one.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention
from jaxtyping import Array


class Setting(NamedTuple):
    """What is fixed when the program is compiled."""

    window: int | None
    softcap: float | None
    block: int
    interpret: bool


# Compiled here, so that a call outside jit builds its mask and compiles once and not once per call.
@partial(jax.jit, static_argnums=0)
def result(setting: Setting, q: Array, k: Array, v: Array, ids: Array | None, sinks: Array | None) -> Array:
    """The result [batch, heads, seq, v_dim], which has a gradient."""
    return _over_rows(setting, False, q, k, v, ids, sinks)


@partial(jax.jit, static_argnums=0)
def log_sum_exp(setting: Setting, q: Array, k: Array, v: Array, ids: Array | None, sinks: Array | None) -> Array:
    """The log-sum-exp [batch, heads, seq], which has none."""
    return _over_rows(setting, True, q, k, v, ids, sinks)[1][0]


def _over_rows(
    setting: Setting, residuals: bool, q: Array, k: Array, v: Array, ids: Array | None, sinks: Array | None
) -> Any:
    """The kernel, row by row of the batch: q [batch, heads, seq, head_dim], k and v [batch, kv_heads, seq, *]."""
    seq = q.shape[2]
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask(seq, setting)] * q.shape[1]),
        block_sizes=_block_sizes(setting.block),
        attn_logits_soft_cap=setting.softcap,
        save_residuals=residuals,
        interpret=setting.interpret,
        head_shards=1,
        q_seq_shards=1,
    )

    def row(q: Array, k: Array, v: Array, ids: Array | None) -> Any:
        return kernel(q, k, v, None if ids is None else splash_attention.SegmentIds(ids, ids), sinks)

    if ids is not None and ids.shape[0] == 1:
        return jax.vmap(partial(row, ids=ids[0]))(q, k, v)
    return jax.vmap(row, in_axes=(0, 0, 0, None if ids is None else 0))(q, k, v, ids)


def _block_sizes(block: int) -> splash_attention.BlockSizes:
    return splash_attention.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )


def mask(seq: int, setting: Setting) -> splash_attention.Mask:
    """Which keys a query sees by index, row by row of [seq, seq]."""
    if setting.window is None:
        return _Causal((seq, seq))
    return _Sliding((seq, seq), (setting.window - 1, 0), 0)


class _Causal(splash_attention.CausalMask):
    """The causal mask, whose blocks above and below the diagonal are single numbers.

    The kernel's tables ask of a block only whether any and whether all pairs are seen. Written out, its blocks take
    three minutes at 131072 tokens.
    """

    def __getitem__(self, index: Any) -> np.ndarray:
        rows, columns = index
        if rows.start >= columns.stop - 1:
            return np.ones((1, 1), bool)
        if rows.stop - 1 < columns.start:
            return np.zeros((1, 1), bool)
        return super().__getitem__(index)


class _Sliding(splash_attention.LocalMask):
    """The mask of a sliding window, whose blocks outside it and far inside it are single numbers."""

    def __getitem__(self, index: Any) -> np.ndarray:
        rows, columns = index
        past = self.window_size[0]
        assert past is not None
        nearest, furthest = rows.start - (columns.stop - 1), rows.stop - 1 - columns.start
        if nearest >= 0 and furthest <= past:
            return np.ones((1, 1), bool)
        if furthest < 0 or nearest > past:
            return np.zeros((1, 1), bool)
        return super().__getitem__(index)

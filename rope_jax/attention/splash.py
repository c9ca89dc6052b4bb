"""jax's own TPU kernel (splash attention): blocks of keys in on-chip memory, blocks outside the mask never visited.

The mask is fixed when the program is compiled, so the kernel serves rows whose index says who sees whom: causal
attention and sliding windows, with segments and padding as data. Lengths that no block divides are padded. The scale
is multiplied into q, which rounds q once more in bfloat16; for float32 the products have the precision that
`jax.default_matmul_precision` sets. There is no forward mode.

The log-sum-exp is a second pass of the kernel, left out of a compiled program that does not use it, and it has no
gradient.

Reference: arXiv 2205.14135 (blocks and recomputation).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rope_jax.attention import kernels
from rope_jax.attention.base import Request, token_positions
from rope_jax.attention.token_order import restored

INTERPRET = False
"""Whether the kernel is emulated instead of compiled: very slow, for tests on machines without a TPU."""
BLOCKS = (512, 256, 128)
"""Sides of a block that compile for float32 and bfloat16 at every head size; 1024 overflows on-chip memory."""
LONGEST = 2**18
"""Tokens in a row: the table of which block comes after which must fit the memory for scalars."""


def refuses(request: Request) -> str | None:
    """What the kernel has no argument for, and where it does not run."""
    refusal = kernels.beyond_index(request)
    if refusal is not None:
        return refusal
    if request.q.dtype == jnp.float16:
        return "it computes in float32 and bfloat16 only"
    if request.q.shape[1] * request.k.shape[1] > LONGEST**2:
        return f"it takes rows of {LONGEST} tokens at most"
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return "its indices are 32 bits wide, so jax_enable_x64 must be off"
    if INTERPRET:
        return None
    if kernels.platform(request) != "tpu":
        return f"it needs a TPU, and the call runs on a {kernels.platform(request)}"
    return kernels.beyond_program(request)


def attention(request: Request) -> tuple[Array, Array]:
    """Result and log-sum-exp, the softmax in float32."""
    # Here, since it brings in Pallas, which costs every import of this package a third of a second.
    from rope_jax.attention import splash_kernel

    request = _keys_in_order(request)
    batch, seq = request.q.shape[:2]
    ids, kv_ids = _segments(request)
    spoiled = kernels.spoiled_rows(request, ids, kv_ids)
    q, k, v = kernels.cleaned(request, ids, kv_ids)
    q = q * request.head_scale()[None, None, :, None]
    block, length = block_side(seq), request.k.shape[1]
    setting = splash_kernel.Setting(_window(request), request.softcap, block, INTERPRET, length, request.shard)
    both = None if kernels.padding_known_absent(request) else (_padded(ids, block), _padded(kv_ids, block))
    heads = tuple(_padded(x.astype(request.q.dtype), block).transpose(0, 2, 1, 3) for x in (q, k, v))
    real = jnp.broadcast_to(ids != 0, (batch, seq))
    out = splash_kernel.result(setting, *heads, both, request.sinks).transpose(0, 2, 1, 3)[:, :seq]
    out = jnp.where(real[..., None, None], out, 0)
    lse = kernels.without_gradient(partial(splash_kernel.log_sum_exp, setting), *heads, both, request.sinks)
    nothing = jnp.float32(-jnp.inf) if request.sinks is None else request.sinks[None, None]
    lse = jnp.where(real[..., None], lse.transpose(0, 2, 1)[:, :seq], nothing)
    out = jnp.where(spoiled[..., None, None], jnp.nan, out)
    return out.astype(request.q.dtype), jnp.where(spoiled[..., None], jnp.nan, lse)


def block_side(seq: int) -> int:
    """Tokens in a block: the largest of `BLOCKS` that pads a row by an eighth at most, else the smallest."""
    for block in BLOCKS:
        if -seq % block * 8 <= seq:
            return block
    return BLOCKS[-1]


def _window(request: Request) -> int | None:
    """The window, or None where it covers the whole row."""
    if request.window is None or int(request.window) >= request.k.shape[1]:
        return None
    return int(request.window)


def _keys_in_order(request: Request) -> Request:
    """The keys of a row that was dealt out, back in the order that the kernel counts them in."""
    shard = request.shard
    if shard is None or shard.dealing == "contiguous":
        return request
    number = 2 * shard.number
    places = restored(number, shard.number, shard.dealing)

    def in_order(x: Array | None) -> Array | None:
        # Chunk by chunk: a gather of single tokens would be slow.
        return None if x is None else x.reshape(x.shape[0], number, -1, *x.shape[2:])[:, places].reshape(x.shape)

    sides: dict[str, Any] = {
        name: in_order(getattr(request, name)) for name in ("k", "v", "kv_positions", "kv_segments")
    }
    return replace(request, **sides)


def _segments(request: Request) -> tuple[Array, Array]:
    """One id per query and per key, [batch or 1, *]; padding is segment 0, which sees itself alone and is zeroed."""
    sides = (request.q_positions, request.q_segments), (request.kv_positions, request.kv_segments)
    real = [token_positions(*side) >= 0 for side in sides]
    ids = [
        x.astype(jnp.int32) if side[1] is None else jnp.where(x, side[1], 0)
        for x, side in zip(real, sides, strict=True)
    ]
    rows = max(x.shape[0] for x in ids)
    return jnp.broadcast_to(ids[0], (rows, ids[0].shape[1])), jnp.broadcast_to(ids[1], (rows, ids[1].shape[1]))


def _padded(x: Array, block: int) -> Array:
    """Zeros, and segment 0, at the end of the sequence up to a whole number of blocks."""
    return jnp.pad(x, [(0, 0), (0, -x.shape[1] % block)] + [(0, 0)] * (x.ndim - 2))

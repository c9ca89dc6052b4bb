"""cuDNN's flash attention behind `jax.nn.dot_product_attention`: half precision on an NVIDIA GPU.

It is told that attention is causal by index, and how wide a window is. Padding is moved behind the real tokens, where
no causal query sees it, and back afterwards; so no lengths are passed, and a row without any token is no special case.

The log-sum-exp is a second pass, left out of a compiled program that does not use it; `jax.nn` rounds it to the dtype
of q, and it has no gradient.

Reference: arXiv 2307.08691 (the kernel's algorithm).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rope_jax.attention import kernels
from rope_jax.attention.base import Request
from rope_jax.attention.xla import no_argument
from rope_jax.positions import is_traced

HALF = (jnp.bfloat16, jnp.float16)
AMPERE, HOPPER = (8, 0), (9, 0)


class Setting(NamedTuple):
    """What is fixed when the program is compiled."""

    scale: float
    window: int | None


def refuses(request: Request) -> str | None:
    """What the kernel has no argument for, and where it does not run."""
    refusal = kernels.beyond_index(request) or _beyond_arguments(request)
    if refusal is not None:
        return refusal
    if kernels.platform(request) != "gpu":
        return f"it needs an NVIDIA GPU, and the call runs on a {kernels.platform(request)}"
    capability = kernels.compute_capability()
    if capability is None or capability < AMPERE:
        return "it needs an NVIDIA GPU of compute capability 8.0 or more"
    widest = 256 if capability >= HOPPER else 128
    if request.q.shape[3] > widest:
        return f"on this GPU its heads are at most {widest} wide"
    return kernels.beyond_program(request)


def _beyond_arguments(request: Request) -> str | None:
    """What `jax.nn.dot_product_attention` cannot be told."""
    if request.shard is not None:
        return "its mask counts queries and keys from the same token, and a shard's queries begin later"
    if request.q.dtype not in HALF:
        return "it computes in bfloat16 and float16 only"
    if request.q_segments is not None:
        return "its mask has no segments, one row is one document"
    if (refusal := no_argument(request)) is not None:
        return refusal
    if request.q.shape[-1] % 8:
        return "it needs heads whose width is a multiple of 8"
    return None


def attention(request: Request) -> tuple[Array, Array]:
    """Result and log-sum-exp."""
    real = (request.q_positions >= 0).astype(jnp.int32)
    spoiled = kernels.spoiled_rows(request, real, real)
    q, k, v = kernels.cleaned(request, real, real)
    scale = request.scale
    if not isinstance(scale, float):
        # The kernel takes one Python number: a scale that is an array is multiplied in.
        q, scale = q * request.head_scale()[None, None, :, None], 1.0
    setting = Setting(scale, None if request.window is None else int(request.window))
    heads = [x.astype(request.q.dtype) for x in (q, k, v)]
    there, back = _paddings_last(request, real)
    heads = [_moved(x, there) for x in heads]
    out = _moved(_attend(setting, *heads), back)
    lse = kernels.without_gradient(lambda *heads: _attend(setting, *heads, return_residual=True)[1], *heads)
    real = jnp.broadcast_to(real != 0, request.q.shape[:2])
    out = jnp.where(real[..., None, None], out, 0)
    lse = jnp.where(real[..., None], _moved(lse, back).astype(jnp.float32), -jnp.inf)
    return jnp.where(spoiled[..., None, None], jnp.nan, out), jnp.where(spoiled[..., None], jnp.nan, lse)


def _attend(setting: Setting, q: Array, k: Array, v: Array, **options: Any) -> Any:
    """Causal attention by index; the kernel counts the tokens before the query, a window the query as well."""
    past = None if setting.window is None else (setting.window - 1, 0)
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, scale=setting.scale, local_window_size=past, implementation="cudnn", **options
    )


def _paddings_last(request: Request, real: Array) -> tuple[Array | None, Array | None]:
    """Indices [batch or 1, seq] that bring real tokens to the front in their order, and back; None if they are there.

    Positions that are known only when the program runs are always followed: four gathers, small beside attention.
    """
    if not is_traced(request.q_positions) and np.all(
        np.diff(np.int8(np.asarray(request.q_positions) >= 0), axis=1) <= 0
    ):
        return None, None
    before = jnp.cumsum(real, axis=1) - real
    index = jnp.arange(real.shape[1], dtype=jnp.int32)[None]
    back = jnp.where(real != 0, before, jnp.sum(real, axis=1, keepdims=True) + index - before)
    there = (
        jnp.zeros_like(back)
        .at[jnp.arange(back.shape[0])[:, None], back]
        .set(jnp.broadcast_to(index, back.shape), unique_indices=True)
    )
    return there, back


def _moved(x: Array, index: Array | None) -> Array:
    """The tokens of [batch, seq, ...] in another order."""
    if index is None:
        return x
    rows = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
    return x.at[rows, jnp.broadcast_to(index, x.shape[:2])].get(unique_indices=True, mode="promise_in_bounds")

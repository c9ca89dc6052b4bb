"""`attend`: check, choose a backend, attend."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Array, Float, Integer

from rope_jax.attention import chunked, cudnn, kernels, reference, splash, xla
from rope_jax.attention.base import Backend, Request
from rope_jax.attention.order import check_order
from rope_jax.attention.regions import Region, check_regions, merged
from rope_jax.attention.request import checked

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {"reference": reference, "xla": xla, "chunked": chunked, "splash": splash, "cudnn": cudnn}
)
KERNELS: Mapping[str, Backend] = MappingProxyType({"tpu": splash, "gpu": cudnn})
SMALL = 2**19
"""Logits (batch * heads * q * kv) up to which the whole matrix is as fast as blocks: from twice as many on, blocks are
1.0 to 2.2 times faster with gradients (two busy CPU cores, heads of 32), and always smaller."""


def attend(
    q: Float[Array | np.ndarray, "batch q heads head_dim"],
    k: Float[Array | np.ndarray, "batch kv kv_heads head_dim"],
    v: Float[Array | np.ndarray, "batch kv kv_heads v_dim"],
    *,
    q_positions: Integer[Array | np.ndarray, "_ q"],
    kv_positions: Integer[Array | np.ndarray, "_ kv"],
    q_segments: Integer[Array | np.ndarray, "_ q"] | None = None,
    kv_segments: Integer[Array | np.ndarray, "_ kv"] | None = None,
    window: int | Integer[Array | np.ndarray, ""] | None = None,
    softcap: float | None = None,
    sinks: Float[Array | np.ndarray, "heads"] | None = None,
    slopes: Float[Array | np.ndarray, "heads"] | None = None,
    scale: float | Float[Array | np.ndarray, ""] | Float[Array | np.ndarray, "heads"] | None = None,
    order: str = "any",
    regions: Sequence[Region] | None = None,
    backend: str = "auto",
) -> Float[Array, "batch q heads v_dim"]:
    """Causal attention by positions, never by index.

        s_ij = softcap tanh((scale q_i . k_j - slope (p_i - p_j)) / softcap)
        o_i  = sum_j exp(s_ij) v_j / (exp(sink) + sum_j exp(s_ij))

    over the keys j with 0 <= p_j <= p_i, p_i - p_j < window and the segment of i, not 0. The softmax is in float32.

    Args:
      q, k, v: rotated already (not so with `regions`); float32, bfloat16 or float16, all alike. kv_heads divides heads.
      q_positions, kv_positions: [batch or 1, seq], in tokens, in any order; negative marks padding.
      q_segments, kv_segments: [batch or 1, seq]; 0 marks padding. Both or neither.
      window: tokens that a query sees, itself included; may be traced.
      softcap: largest absolute logit, a number.
      sinks: [heads], a learned logit beside the keys whose value is zero.
      slopes: [heads], ALiBi (arXiv 2108.12409): what a logit loses per token of distance.
      scale: number or [heads]; 1 / sqrt(head_dim) unless given.
      order: "any"; "increasing": queries and keys are the same tokens and positions rise with the index inside a
        segment; "contiguous": in steps of 1. A hint for kernels with static masks, checked where positions are known.
      regions: of a score map, each of which turns q and k its own way; q and k then come unrotated. On `reference` and
        `chunked`. Positions, segments and window of the call still say who sees whom.
      backend: "reference", "xla", "chunked", "splash" (TPU), "cudnn" (NVIDIA GPU), or "auto". Auto: above 2^19 logits
        the kernel of the platform where it serves and one device is sure to run it, else `chunked`; up to there `xla`,
        or `reference` for what `xla` refuses. `chunked` and the kernels have no forward-mode derivative.

    Returns:
      [batch, q, heads, v_dim] in the dtype of q. A row that sees nothing is zero; a row that sees a NaN or an
      infinity, or holds one in any head of q and sees a key, is NaN in every head, and no other row is touched.

    Raises:
      TypeError, ValueError: an argument breaks its rule, or the backend cannot serve it.

    Differs from `jax.nn.dot_product_attention`: `is_causal` there aligns the first query with the first key, and a
    row that sees nothing is the mean of the values.

    Example:
      >>> import jax.numpy as jnp
      >>> q, k, v = (jnp.ones((1, seq, 2, 4)) for seq in (1, 3, 3))
      >>> attend(q, k, v, q_positions=jnp.array([[2]]), kv_positions=jnp.array([[0, 1, 2]])).shape
      (1, 1, 2, 4)
    """
    request = checked(
        q,
        k,
        v,
        q_positions=q_positions,
        kv_positions=kv_positions,
        q_segments=q_segments,
        kv_segments=kv_segments,
        window=window,
        softcap=softcap,
        sinks=sinks,
        slopes=slopes,
        scale=scale,
        order=order,
    )
    check_order(request)
    parts = (request,) if regions is None else check_regions(regions, request)
    return answered(parts, request.sinks, backend)


def answered(parts: Sequence[Request], sinks: Array | None, backend: str) -> Array:
    """The result for a request by itself, or for the regions of one, merged."""
    server = chosen(parts[0], backend)
    if parts[0].band is None:
        return server.attention(parts[0])[0]
    return merged([server.attention(part) for part in parts], sinks)[0].astype(parts[0].q.dtype)


def chosen(request: Request, backend: str) -> Backend:
    """The backend of that name, or the fastest for the request's size."""
    if backend == "auto":
        return fastest(request)
    if not isinstance(backend, str) or backend not in BACKENDS:
        error = ValueError if isinstance(backend, str) else TypeError
        raise error(f"`backend` must be one of auto, {', '.join(BACKENDS)}; got {backend!r}. Choose one of them.")
    refusal = BACKENDS[backend].refuses(request)
    if refusal is not None:
        raise ValueError(f'`backend` must serve what is asked of it; got {backend!r}: {refusal}. Use backend="auto".')
    return BACKENDS[backend]


def fastest(request: Request) -> Backend:
    """The fastest backend for the platform and the size that is sure to serve."""
    batch, queries, heads, _ = request.q.shape
    if batch * heads * queries * request.k.shape[1] <= SMALL:
        return xla if xla.refuses(request) is None else reference
    kernel = KERNELS.get(kernels.platform(request))
    if kernel is not None and kernels.devices(request) == 1 and kernel.refuses(request) is None:
        return kernel
    return chunked

"""Attention as the equation says it, holding the whole [q, kv] matrix: the yardstick of the other backends.

s_ij = softcap tanh((scale q_i . k_j - slope (p_i - p_j)) / softcap)
o_i  = sum_j exp(s_ij) v_j / (exp(sink) + sum_j exp(s_ij)),   j over the keys that i sees
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rope_jax.attention.base import Request, distances, separated


def refuses(request: Request) -> str | None:
    """Nothing: every request can be served."""
    return None


def attention(request: Request) -> tuple[Array, Array]:
    """Result and log-sum-exp, all in float32; every derivative of jax works."""
    q, k, v, visible, spoiled = separated(request)
    seen = visible[:, None]
    logits = jnp.where(seen, _logits(request, q, k), -jnp.inf)
    top = jnp.max(logits, axis=-1, keepdims=True)
    if request.sinks is not None:
        top = jnp.maximum(top, request.sinks[None, :, None, None])
    # The shift cancels out of the result, so it takes no part in the derivative.
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    weights = jnp.where(seen, jnp.exp(logits - top), 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if request.sinks is not None:
        total = total + jnp.exp(request.sinks[None, :, None, None] - top)
    empty = total == 0.0
    total = jnp.where(empty, 1.0, total)
    out = jnp.einsum("bhqt,bthd->bqhd", weights / total, v)
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(total))[..., 0].transpose(0, 2, 1)
    out = jnp.where(spoiled[..., None, None], jnp.nan, out)
    return out.astype(request.out_dtype), jnp.where(spoiled[..., None], jnp.nan, lse)


def _logits(request: Request, q: Array, k: Array) -> Array:
    """Logits of every pair, [batch, heads, q, kv]."""
    logits = jnp.einsum("bqhd,bthd->bhqt", q, k) * request.head_scale()[None, :, None, None]
    if request.slopes is not None:
        logits = logits - request.slopes[None, :, None, None] * distances(request)[:, None]
    if request.softcap is not None:
        logits = request.softcap * jnp.tanh(logits / request.softcap)
    return logits

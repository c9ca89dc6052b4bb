"""`jax.nn.dot_product_attention` under an explicit mask: XLA's own attention, which holds the whole [q, kv] matrix.

Its `is_causal` counts from the first query and the first key, and a row that sees nothing returns the mean of the
values; so the mask comes from the positions, and such rows are zeroed here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rope_jax.attention.base import Request, distances, separated


def no_argument(request: Request) -> str | None:
    """What `jax.nn.dot_product_attention` has no argument for, however it computes."""
    if request.softcap is not None:
        return "a softcap acts on the logits before the softmax, where jax.nn.dot_product_attention has no hook"
    if request.sinks is not None:
        return "jax.nn.dot_product_attention has no logit beside the keys for a sink"
    if request.v.shape[-1] != request.q.shape[-1]:
        return "jax.nn.dot_product_attention needs values as wide as the keys"
    return None


def refuses(request: Request) -> str | None:
    """What cannot be asked of it, and regions."""
    if (refusal := no_argument(request)) is not None:
        return refusal
    if request.band is not None:
        return "its log-sum-exp carries no gradient, and regions are merged by theirs"
    return None


def attention(request: Request) -> tuple[Array, Array]:
    """Result and log-sum-exp, in float32 throughout; the log-sum-exp carries no gradient."""
    q, k, v, visible, spoiled = separated(request, repeat=False)
    scale = request.scale
    if not isinstance(scale, float):
        # The kernel takes one Python number: a scale that is an array is multiplied in.
        q, scale = q * request.head_scale()[None, None, :, None], 1.0
    bias = None
    if request.slopes is not None:
        bias = -request.slopes[None, :, None, None] * distances(request)[:, None]
    out, lse = jax.nn.dot_product_attention(
        q, k, v, bias=bias, mask=visible[:, None], scale=scale, implementation="xla", return_residual=True
    )
    occupied = jnp.any(visible, axis=-1)
    out = jnp.where(spoiled[..., None, None], jnp.nan, jnp.where(occupied[..., None, None], out, 0.0))
    lse = jnp.where(spoiled[..., None], jnp.nan, jnp.where(occupied[..., None], lse, -jnp.inf))
    return out.astype(request.q.dtype), lse

"""A call of `attend` as a checked `Request`."""

from typing import Any

import jax

from rope_jax.attention.base import Request
from rope_jax.attention.order import check_order_name
from rope_jax.attention.validation import (
    check_both_segments,
    check_heads,
    check_per_head,
    check_scale,
    check_softcap,
    check_tokens,
    check_window,
)


def checked(
    q: Any,
    k: Any,
    v: Any,
    *,
    q_positions: Any,
    kv_positions: Any,
    q_segments: Any = None,
    kv_segments: Any = None,
    window: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    slopes: Any = None,
    scale: Any = None,
    order: str = "any",
) -> Request:
    """The request that the arguments of `attend` make, each checked by itself; what `order` promises is not."""
    q, k, v = check_heads(q, k, v)
    heads, head_dim = q.shape[2:]
    check_both_segments(q_segments, kv_segments)
    # Positions that are known stay known inside jit, where they would turn into tracers before `order` is checked.
    with jax.ensure_compile_time_eval():
        q_tokens = check_tokens(q_positions, q_segments, "q", q)
        kv_tokens = check_tokens(kv_positions, kv_segments, "kv", k)
    check_order_name(order)
    return Request(
        q=q,
        k=k,
        v=v,
        q_positions=q_tokens[0],
        kv_positions=kv_tokens[0],
        q_segments=q_tokens[1],
        kv_segments=kv_tokens[1],
        window=check_window(window),
        softcap=check_softcap(softcap),
        sinks=check_per_head(sinks, "sinks", heads),
        slopes=check_per_head(slopes, "slopes", heads),
        scale=check_scale(scale, heads, head_dim),
        order=order,
    )

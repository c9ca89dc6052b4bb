"""What `attend` checks before anything is computed."""

import math
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rope_jax.positions import LARGEST_POSITION, check_positions, is_traced

DTYPES = ("float32", "bfloat16", "float16")


def check_heads(q: Any, k: Any, v: Any) -> tuple[Array, Array, Array]:
    """q, k, v as arrays of one dtype whose axes fit."""
    q, k, v = (_four_axes(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    for x, name in ((k, "k"), (v, "v")):
        if x.dtype != q.dtype:
            raise TypeError(f"`{name}` must have the dtype of `q`, {q.dtype}; got {x.dtype}. Cast all three to one.")
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"`{name}` must have the batch of `q`, {q.shape[0]}; got {x.shape[0]}. Repeat its rows.")
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"`k` must have the head_dim of `q`, {q.shape[3]}; got {k.shape[3]}. Only `v` may differ.")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"`v` must have the batch, kv and kv_heads of `k`, {k.shape[:3]}; got {v.shape[:3]}. "
            "Pass one value per key."
        )
    if q.shape[2] % k.shape[2]:
        raise ValueError(
            f"`k` must have kv_heads that divide the {q.shape[2]} heads of `q`; got {k.shape[2]}. "
            "Axes are [batch, seq, heads, head_dim]: heads come after the sequence."
        )
    return q, k, v


def _four_axes(x: Any, name: str) -> Array:
    if not hasattr(x, "dtype") or str(x.dtype) not in DTYPES:
        found = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"`{name}` must be an array of {', '.join(DTYPES)}; got {found}. Cast it first.")
    if x.ndim != 4 or 0 in x.shape:
        raise ValueError(
            f"`{name}` must be [batch, seq, heads, head_dim], no axis empty; got shape {tuple(x.shape)}. "
            "One row is a batch of one: x[None]."
        )
    return jnp.asarray(x)


def check_tokens(positions: Any, segments: Any, side: str, x: Array) -> tuple[Array, Array | None]:
    """Positions and segments of the q or kv side as int32 [batch or 1, seq]."""
    positions = check_per_token(positions, f"{side}_positions", x)
    if segments is None:
        return positions, None
    segments = check_per_token(segments, f"{side}_segments", x)
    if not is_traced(segments) and np.asarray(segments).min() < 0:
        raise ValueError(
            f"`{side}_segments` must not be negative; got {np.asarray(segments).min()}. "
            "Number segments from 1; 0 marks padding."
        )
    return positions, segments


def check_per_token(values: Any, argument: str, x: Array) -> Array:
    """One integer per token, as int32 [batch or 1, seq]."""
    values = check_positions(values, argument)
    batch, seq = x.shape[:2]
    if values.shape not in {(batch, seq), (1, seq)}:
        raise ValueError(
            f"`{argument}` must be [batch or 1, seq] = [{batch} or 1, {seq}]; got shape {values.shape}. "
            "Give every token one integer, and rows that are alike a leading axis of 1."
        )
    return values


def check_both_segments(q_segments: object, kv_segments: object) -> None:
    """Segments of one side alone say nothing."""
    if (q_segments is None) != (kv_segments is None):
        missing, given = ("q", "kv") if q_segments is None else ("kv", "q")
        raise ValueError(
            f"`{missing}_segments` must be given with `{given}_segments`; got None. "
            "Pass both, or neither; one segment throughout is all ones."
        )


def check_window(window: Any) -> int | Array | None:
    """The window in tokens: None, a positive int, or an int32 scalar."""
    if window is None:
        return None
    cure = "A window counts the token itself, so the least is 1; None sees the whole past."
    if hasattr(window, "dtype"):
        if window.ndim or not jnp.issubdtype(window.dtype, jnp.integer):
            raise TypeError(f"`window` must be an integer scalar; got {window.dtype}{list(window.shape)}. {cure}")
        if is_traced(window):
            return window.astype(jnp.int32)
    elif isinstance(window, bool) or not isinstance(window, int):
        raise TypeError(f"`window` must be an integer; got {window!r}. {cure}")
    tokens = operator.index(window)
    if not 1 <= tokens <= LARGEST_POSITION:
        raise ValueError(f"`window` must lie within 1 and 2^31 - 1 tokens; got {tokens}. {cure}")
    return tokens


def check_softcap(softcap: Any) -> float | None:
    """The softcap, a positive number known when the program is compiled."""
    if softcap is None:
        return None
    if isinstance(softcap, bool) or not isinstance(softcap, int | float | np.number):
        raise TypeError(f"`softcap` must be a Python number; got {type(softcap).__name__}. It is fixed per program.")
    if not (softcap > 0 and held_by_float32(softcap)):
        raise ValueError(
            f"`softcap` must be positive and finite in float32; got {softcap}. None leaves the logits uncapped."
        )
    return float(softcap)


def check_per_head(values: Any, argument: str, heads: int) -> Array | None:
    """One float32 number per query head."""
    if values is None:
        return None
    if not hasattr(values, "dtype") or not jnp.issubdtype(values.dtype, jnp.floating):
        found = getattr(values, "dtype", type(values).__name__)
        raise TypeError(f"`{argument}` must be a floating array [heads]; got {found}. Give one number per head.")
    if values.shape != (heads,):
        raise ValueError(
            f"`{argument}` must be [heads] = [{heads}]; got shape {tuple(values.shape)}. "
            "Give one number per query head, not per key head."
        )
    return _finite(values, argument)


def check_scale(scale: Any, heads: int, head_dim: int) -> float | Array:
    """The logit scale: 1 / sqrt(head_dim) unless given, as a number, a scalar or [heads]."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, bool):
        raise TypeError(f"`scale` must be a number or [heads]; got {scale}. None means 1 / sqrt(head_dim).")
    if hasattr(scale, "dtype") and scale.ndim:
        return check_per_head(scale, "scale", heads)  # type: ignore[return-value]
    if hasattr(scale, "dtype") and not isinstance(scale, np.generic):
        if not jnp.issubdtype(scale.dtype, jnp.floating):
            raise TypeError(f"`scale` must be floating; got {scale.dtype}. None means 1 / sqrt(head_dim).")
        return _finite(scale, "scale")
    if not isinstance(scale, int | float | np.number):
        raise TypeError(f"`scale` must be a number or [heads]; got {scale!r}. None means 1 / sqrt(head_dim).")
    if scale != 0 and not held_by_float32(scale):
        raise ValueError(f"`scale` must be finite in float32; got {scale}. None means 1 / sqrt(head_dim).")
    return float(scale)


def held_by_float32(value: Any) -> bool:
    """Whether a number is neither infinite nor lost in float32, which keeps about 1.2e-38 to 3.4e38."""
    limits = np.finfo(np.float32)
    return bool(float(limits.tiny) <= abs(float(value)) <= float(limits.max))


def _finite(values: Any, argument: str) -> Array:
    if not is_traced(values) and not np.all(np.isfinite(np.asarray(values, np.float32))):
        raise ValueError(f"`{argument}` must be finite; got {np.asarray(values)}. Leave it out where none is meant.")
    return jnp.asarray(values).astype(jnp.float32)

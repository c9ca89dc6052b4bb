"""What queries are multiplied by: factors at positions, given with a call, and SSMax, which a model learns."""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32, Int32

# A factor for all layer groups, or one for each; None where queries stay as they are.
QueryScaleLike = Array | np.ndarray | float | Mapping[str, Any] | None
# 1 / mean of ln n over rows of 1024 tokens, 0.168: logits then start at the size that plain softmax gives them.
_START = 1024 / math.lgamma(1025)


class ScalableSoftmax(nnx.Module):
    """SSMax: a factor `s ln n` on the logits of every head, s learned, n the number of tokens that the query sees.

        softmax(s ln(n) z),   n = min(p + 1, window)

    n is read off the position p inside the token's own document: packed documents count from their own start, padding
    is not counted, and a window is all that its layer can see. Positions with gaps (PoSE, random ones) count the gaps,
    as the model then takes them for tokens. A document must begin at 0, as those of `packed_positions` and
    `padded_positions` do: unlike the rotation, n changes with the origin.

    Args:
      heads: query heads.

    Reference: Nakanishi, arXiv 2501.19399.
    """

    def __init__(self, heads: int) -> None:
        self.scale = nnx.Param(jnp.full((heads,), _START, jnp.float32))

    def __call__(
        self, positions: Int32[Array, "rows seq"], window: Array | int | None
    ) -> Float32[Array, "rows seq heads"]:
        """The factor of every query; 0 for padding, whose result means nothing."""
        before = jnp.maximum(positions, 0)
        if window is not None:
            before = jnp.minimum(before, jnp.asarray(window, jnp.int32) - 1)
        return jnp.log1p(before.astype(jnp.float32))[..., None] * self.scale[...].astype(jnp.float32)[None, None]


def scaled_queries(q: Float[Array, "batch seq heads head_dim"], *factors: Array | None) -> Array:
    """q times factors [batch or 1, seq or 1] and [batch or 1, seq, heads], in the dtype of q."""
    given = [factor for factor in factors if factor is not None]
    if not given:
        return q
    wide = q.astype(jnp.float32)
    for factor in given:
        wide = wide * factor.reshape(*factor.shape, *(1,) * (4 - factor.ndim))
    return wide.astype(q.dtype)


def group_query_scales(
    query_scale: QueryScaleLike, groups: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[Float32[Array, "rows seq"], ...] | None:
    """The factor of every layer group, all of one shape; None when nothing scales.

    Raises:
      TypeError: what is no floating array.
      ValueError: unknown or missing groups, arrays of another shape than the tokens.
    """
    named = query_scale if isinstance(query_scale, Mapping) else dict.fromkeys(groups, query_scale)
    if set(named) != set(groups):
        raise ValueError(
            f"`query_scale` must name the layer groups {groups}; got {tuple(named)}. "
            "Write None for a group whose queries stay as they are."
        )
    factors = [None if named[group] is None else token_scale(named[group], shape) for group in groups]
    if all(factor is None for factor in factors):
        return None
    one = jnp.ones((1, 1), jnp.float32)
    return tuple(jnp.broadcast_arrays(*(one if factor is None else factor for factor in factors)))


def token_scale(value: Any, shape: tuple[int, ...]) -> Float32[Array, "rows seq"]:
    """One factor as float32 [batch or 1, seq], or [1, 1] for a number."""
    if isinstance(value, bool) or (not isinstance(value, float | int) and not hasattr(value, "dtype")):
        raise TypeError(f"`query_scale` must be a floating array; got {value!r}. RopeSpec.logit_scale makes one.")
    if hasattr(value, "dtype") and not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"`query_scale` must be a floating array; got dtype {value.dtype}. It is a factor.")
    value = jnp.asarray(value).astype(jnp.float32)
    if value.ndim == 0:
        return value[None, None]
    if value.ndim != 2 or value.shape[0] not in (1, shape[0]) or value.shape[1] != shape[1]:
        raise ValueError(
            f"`query_scale` must be [] or [batch or 1, seq] for tokens [batch, seq] = {tuple(shape)}; got "
            f"{value.shape}. Add an axis for one row: scale[None]."
        )
    return value

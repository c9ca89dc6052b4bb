"""Rotation: the turn of queries and keys by a rotary table, and back. Values are never rotated.

Axes: `batch` any leading axes, `seq` tokens, `heads`, `head_dim`, `pairs` = rotary width / 2.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.layout import Layout, check_layout
from rope_jax.table import RotaryTable


def rotate(
    x: Float[Array, "*batch seq heads head_dim"], table: RotaryTable, *, layout: Layout = "half"
) -> Float[Array, "*batch seq heads head_dim"]:
    """Turn every pair of channels of queries or keys by its angle.

        (x_a, x_b) -> (x_a cos - x_b sin,  x_b cos + x_a sin)

    Args:
      x: [*batch, seq, heads, head_dim], any floating dtype, which is kept (the arithmetic is float32).
      table: [*batch, seq, pairs], batch axes 1 or equal, shared by the heads; or [*batch, seq, kv_heads, pairs], one
        per kv head, each serving `heads / kv_heads` query heads in a row.
      layout: "half" pairs channels (i, i + rotary_dim/2) (GPT-NeoX, Hugging Face); "interleaved" pairs
        (2i, 2i + 1) (GPT-J, Meta).

    Returns:
      The rotated array. Channels from 2 * pairs on pass through bit for bit. Values are never rotated.

    Raises:
      TypeError: x is not floating, or the table not float32. ValueError: a table that does not fit, an unknown layout.

    Reference: Su et al., arXiv 2104.09864, eq. 34.

    Example:
      >>> from rope_jax import geometric_schedule, rotary_table
      >>> q = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
      >>> rotate(q, rotary_table(geometric_schedule(8), jnp.arange(4)[None])).dtype
      dtype(bfloat16)
    """
    cos, sin = _per_head(x, table)
    return _turn(x, cos, sin, layout)


def unrotate(
    x: Float[Array, "*batch seq heads head_dim"], table: RotaryTable, *, layout: Layout = "half"
) -> Float[Array, "*batch seq heads head_dim"]:
    """Undo `rotate`: turn back, and divide the attention scale out.

        (y_a, y_b) -> (y_a cos + y_b sin,  y_b cos - y_a sin) / attention_scale^2

    Not the transpose that differentiation uses, which keeps the scale. Arguments and errors as `rotate`.

    Example:
      >>> from rope_jax import geometric_schedule, rotary_table
      >>> table = rotary_table(geometric_schedule(4), jnp.arange(3)[None])
      >>> x = jnp.ones((1, 3, 1, 4))
      >>> bool(jnp.allclose(unrotate(rotate(x, table), table), x))
      True
    """
    cos, sin = _per_head(x, table)
    square = cos * cos + sin * sin
    return _turn(x, cos / square, -sin / square, layout)


def _turn(x: Array, cos: Array, sin: Array, layout: Layout) -> Array:
    check_layout(layout)
    pairs = cos.shape[-1]
    turned, passed = x[..., : 2 * pairs], x[..., 2 * pairs :]
    # Split, cast and rejoin on an axis of length two: one fused kernel, and its transpose is the same kernel.
    axis, shape = (-2, (2, pairs)) if layout == "half" else (-1, (pairs, 2))
    both = turned.reshape(*x.shape[:-1], *shape)
    a, b = (jnp.take(both, k, axis=axis, mode="clip").astype(jnp.float32) for k in (0, 1))
    joined = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=axis).astype(x.dtype).reshape(turned.shape)
    return jnp.concatenate([joined, passed], axis=-1) if passed.shape[-1] else joined


def _per_head(x: Array, table: RotaryTable) -> tuple[Array, Array]:
    """The table with an axis for heads, checked against x."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"`x` must be floating queries or keys; got dtype {x.dtype}.")
    if not isinstance(table, RotaryTable):
        raise TypeError(f"`table` must be a RotaryTable; got {type(table).__name__}. Make it with rotary_table.")
    cos, sin = table.cos, table.sin
    if sin.shape != cos.shape:
        raise ValueError(f"`table` must have cos and sin of one shape; got {cos.shape} and {sin.shape}.")
    if cos.dtype != jnp.float32 or sin.dtype != jnp.float32:
        raise TypeError(f"`table` must be float32; got {cos.dtype}. Rotation casts back to the dtype of x by itself.")
    if x.ndim < 3 or cos.ndim not in (x.ndim - 1, x.ndim):
        raise ValueError(
            f"`table` must have one axis less than `x` (shared by heads) or as many (per kv head); got cos "
            f"{cos.shape} for x {x.shape}. Give positions the batch axes of x: positions[None] for one row."
        )
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(
            f"`table` must turn at most the head width; got {2 * cos.shape[-1]} rotary channels for "
            f"head_dim {x.shape[-1]}. Build the schedule with rotary_dim <= head_dim."
        )
    if cos.ndim == x.ndim - 1:
        cos, sin = cos[..., None, :], sin[..., None, :]
    elif x.shape[-2] % cos.shape[-2] == 0:
        cos, sin = (jnp.repeat(t, x.shape[-2] // cos.shape[-2], axis=-2) for t in (cos, sin))
    fits = all(t in (1, n) for t, n in zip(cos.shape[:-3], x.shape[:-3], strict=True))
    if not fits or cos.shape[-3] != x.shape[-3] or cos.shape[-2] not in (1, x.shape[-2]):
        raise ValueError(
            f"`table` must match `x` in seq, and in each batch axis be 1 or equal; got cos {table.cos.shape} for "
            f"x {x.shape} [*batch, seq, heads, head_dim]. Make the table from these tokens' own positions."
        )
    return cos, sin

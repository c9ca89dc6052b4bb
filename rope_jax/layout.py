"""Which channels form a pair, and moving weights from one convention to the other."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from rope_jax.schedule import check_rotary_dim

Layout = Literal["half", "interleaved"]


def check_layout(layout: str, argument: str = "layout") -> None:
    """Refuse a layout that is neither "half" nor "interleaved"."""
    if layout not in ("half", "interleaved"):
        raise ValueError(
            f'`{argument}` must be "half" (pairs i, i + d/2) or "interleaved" (pairs 2i, 2i + 1); got {layout!r}.'
        )


def convert_layout(
    x: Shaped[Array, "..."] | np.ndarray,
    *,
    to: Layout,
    rotary_dim: int | None = None,
    head_dim: int | None = None,
    axis: int = -1,
) -> Shaped[Array, "..."]:
    """Reorder the channels of a checkpoint's queries and keys from the other layout.

    With P = [0, 2, 4, ..., 1, 3, 5, ...], `half(x[P]) == interleaved(x)[P]`: gather by P to reach "half", by its
    inverse to reach "interleaved".

    Args:
      x: a weight of W_q or W_k, its bias, or a per-channel QK-norm scale. Values and outputs never change.
      to: the layout wanted; the array is in the other one.
      rotary_dim: how many leading channels of each head turn (default: all); the rest keeps its place.
      head_dim: width of one head, when the axis holds several heads one after the other (default: one head).
      axis: the axis of channels.

    Returns:
      The array with that axis permuted, head by head.

    Raises:
      ValueError: an axis that does not hold whole heads, a rotary width above the head's, an unknown layout.

    Example:
      >>> convert_layout(jnp.arange(6), to="half").tolist()
      [0, 2, 4, 1, 3, 5]
    """
    check_layout(to, "to")
    x = jnp.asarray(x)
    channels = x.shape[axis]
    head_dim = channels if head_dim is None else head_dim
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    check_rotary_dim(rotary_dim)
    if head_dim < 1 or channels % head_dim:
        raise ValueError(f"`head_dim` must divide the axis of {channels} channels; got {head_dim}.")
    if rotary_dim > head_dim:
        raise ValueError(f"`rotary_dim` must be at most head_dim {head_dim}; got {rotary_dim}.")
    order = np.arange(rotary_dim).reshape(-1, 2).T.reshape(-1)
    if to == "interleaved":
        order = np.argsort(order)
    order = np.concatenate([order, np.arange(rotary_dim, head_dim)])
    heads = head_dim * np.arange(channels // head_dim)
    return jnp.take(x, (heads[:, None] + order[None, :]).reshape(-1), axis=axis)

"""How a sequence is dealt out over the devices that share it.

Cut into n parts, "contiguous" gives part i to shard i. Causal attention then is little work for the first and much for
the last. "zigzag" cuts 2n chunks and gives shard i chunks i and 2n - 1 - i, which together are the same work on all.
"""

from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int32

Dealing = Literal["contiguous", "zigzag"]


def dealt(length: int, shards: int, order: Dealing = "contiguous") -> Int32[np.ndarray, "length"]:
    """The token that stands at each place of a dealt-out row.

        row'[p] = row[dealt[p]],   shard i holds places i length / shards up to (i + 1) length / shards

    Deal token ids, targets, positions and segments alike: a position belongs to its token.

    Args:
      length: tokens in the row.
      shards: devices that share it.
      order: "contiguous", which leaves the row as it is, or "zigzag".

    Returns:
      [length] int32 indices of tokens.

    Raises:
      TypeError, ValueError: sizes that are no counts, an unknown order, a length that the shards do not divide.

    Reference: arXiv 2407.21783, section 3.3.2 (zigzag).

    Example:
      >>> dealt(8, 2, "zigzag").tolist()
      [0, 1, 6, 7, 2, 3, 4, 5]
    """
    check_dealt(length, shards, order)
    tokens = np.arange(length, dtype=np.int32)
    if order == "contiguous" or shards == 1:
        return tokens
    chunks = tokens.reshape(2 * shards, -1)
    return np.stack([chunks[:shards], chunks[: shards - 1 : -1]], axis=1).reshape(-1)


def restored(length: int, shards: int, order: Dealing = "contiguous") -> Int32[np.ndarray, "length"]:
    """The place of each token in a dealt-out row, the inverse of `dealt`: row = row'[restored].

    Args and errors as for `dealt`.

    Example:
      >>> restored(8, 2, "zigzag").tolist()
      [0, 1, 4, 5, 6, 7, 2, 3]
    """
    return np.argsort(dealt(length, shards, order)).astype(np.int32)


def check_dealt(length: Any, shards: Any, order: Any) -> None:
    """A known order, and a length that the shards divide into whole parts or pairs of chunks."""
    for name, value in (("length", length), ("shards", shards)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"`{name}` must be an integer; got {value!r}. Count tokens and devices.")
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1; got {value}. Count tokens and devices.")
    if order not in get_args(Dealing):
        raise ValueError(f"`order` must be one of {', '.join(get_args(Dealing))}; got {order!r}. Choose one of them.")
    parts = shards if order == "contiguous" or shards == 1 else 2 * shards
    if length % parts:
        raise ValueError(
            f"`length` must be divisible by {parts} for {shards} shards in {order} order; got {length}. Pad the row to "
            f"{length + -length % parts} tokens: padding is position -1."
        )

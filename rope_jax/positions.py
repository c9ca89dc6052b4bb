"""Position ids: explicit integers that say where each token stands.

A position is a property of the token, never of its index in an array, so padding, packing, chunks and
shards need no special case. Negative positions and segment 0 mark padding wherever a mask is made.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

LARGEST_POSITION = 2**31 - 1


def is_traced(value: object) -> bool:
    """Whether `value` is known only when the compiled program runs."""
    return isinstance(value, jax.core.Tracer)


def check_positions(positions: object, argument: str = "positions") -> Int32[Array, "..."]:
    """Position ids as int32, after checking what can be checked.

    Args:
      positions: integers of any width, in tokens; arrays, nested lists or tracers.
      argument: the name that an error message uses.

    Returns:
      The same integers as int32 of the same shape.

    Raises:
      TypeError: the dtype is not an integer (floating positions lose whole tokens; booleans are masks).
      ValueError: a known position is beyond +-(2^31 - 1), or lists are no rows of one length. Traced 64-bit and
        unsigned ones wrap unchecked.

    Example:
      >>> check_positions([0, 1, 2]).dtype
      dtype('int32')
    """
    if not is_traced(positions):
        positions = positions if isinstance(positions, jax.Array) else _host_array(positions, argument)
    dtype = positions.dtype  # type: ignore[attr-defined]
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(
            f"`{argument}` must be integers; got dtype {dtype}. "
            "Count tokens in int32; methods that stretch positions scale the frequencies instead."
        )
    if not is_traced(positions) and (dtype.itemsize > 4 or dtype == np.uint32 or dtype == np.int32):
        host = np.asarray(positions)
        if host.size and not (-LARGEST_POSITION <= int(host.min()) and int(host.max()) <= LARGEST_POSITION):
            worst = int(host.max()) if int(host.max()) > LARGEST_POSITION else int(host.min())
            raise ValueError(
                f"`{argument}` must lie within +-(2^31 - 1) = +-{LARGEST_POSITION}; got {worst}. "
                "Only offsets matter to RoPE: subtract a common start from every position."
            )
        # NumPy converts before jax sees the array: jax would warn about, or wrap, 64-bit integers.
        positions = host.astype(np.int32)
    return jnp.asarray(positions).astype(jnp.int32)  # type: ignore[arg-type]


def _host_array(values: object, argument: str) -> np.ndarray:
    """Known integers as NumPy has them; an empty list holds nothing that is no integer."""
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(
            f"`{argument}` must be rows of one length; got rows of different lengths. "
            "Pad them: padded_positions(mask) marks padding."
        ) from None
    return array if array.size else array.astype(np.int32)


def padded_positions(mask: Bool[Array | np.ndarray, "batch seq"]) -> Int32[Array, "batch seq"]:
    """Positions of the real tokens of padded rows: 0, 1, 2, ... from the first real token; padding gets -1.

    Works for padding on the left, on the right or in between.

    Args:
      mask: [batch, seq], True where a token is real.

    Example:
      >>> padded_positions(jnp.array([[False, True, True]])).tolist()
      [[-1, 0, 1]]
    """
    mask = _checked_mask(mask)
    _check_rows(mask, "mask")
    counted = jnp.cumsum(mask.astype(jnp.int32), axis=-1) - 1
    return jnp.where(mask, counted, -1)


def packed_positions(
    segments: Int[Array | np.ndarray, "batch seq"], mask: Bool[Array | np.ndarray, "batch seq"] | None = None
) -> Int32[Array, "batch seq"]:
    """Positions of packed documents: each run of one segment id counts its real tokens from 0; padding gets -1.

    Args:
      segments: [batch, seq], one id per document, its tokens adjacent; 0 marks padding.
      mask: [batch, seq], False where a token inside a document is padding.

    Example:
      >>> packed_positions(jnp.array([[7, 7, 9, 9, 9, 0]])).tolist()
      [[0, 1, 0, 1, 2, -1]]
    """
    segments = check_positions(segments, "segments")
    _check_rows(segments, "segments")
    real = segments != 0
    if mask is not None:
        mask = _checked_mask(mask)
        if mask.shape != segments.shape:
            raise ValueError(f"`mask` must have the shape of `segments` {segments.shape}; got {mask.shape}.")
        real = real & mask
    counted = jnp.cumsum(real.astype(jnp.int32), axis=-1)
    starts = jnp.concatenate(
        [jnp.ones_like(segments[..., :1], dtype=jnp.bool_), segments[..., 1:] != segments[..., :-1]], axis=-1
    )
    # Real tokens counted before the run began; a running maximum carries it along the run.
    before = jax.lax.cummax(jnp.where(starts, counted - real.astype(jnp.int32), 0), axis=segments.ndim - 1)
    return jnp.where(real, counted - before - 1, -1)


def lengths(
    positions: Int[Array | np.ndarray, "batch seq"], segments: Int[Array | np.ndarray, "batch seq"] | None = None
) -> Int32[Array, "batch"] | Int32[Array, "batch seq"]:
    """The length that each row, or each token's segment, has: its largest position plus one.

    This is what a length-dependent schedule needs: not the width of the array, not the batch's maximum.

    Args:
      positions: [batch, seq], in tokens; negative marks padding, which never counts.
      segments: [batch, seq], document ids in any order; 0 marks padding.

    Returns:
      [batch] without segments, [batch, seq] with them (0 for padding and for rows of nothing but padding).

    Raises:
      ValueError: segments of another shape, or a known position of 2^31 - 1, whose length int32 cannot hold.

    Example:
      >>> lengths(jnp.array([[0, 1, 2, -1]])).tolist()
      [3]
    """
    positions = check_positions(positions)
    _check_rows(positions, "positions")
    if not is_traced(positions) and positions.size and int(jnp.max(positions)) == LARGEST_POSITION:
        raise ValueError(f"`positions` must be below {LARGEST_POSITION} to have a length; got {LARGEST_POSITION}.")
    if segments is None:
        return jnp.maximum(jnp.max(positions, axis=-1), -1) + 1
    segments = check_positions(segments, "segments")
    if segments.shape != positions.shape:
        raise ValueError(
            f"`segments` must have the shape of `positions` {positions.shape}; got {segments.shape}. "
            "Give every token its own segment id."
        )
    counted = jnp.where(segments == 0, -1, jnp.maximum(positions, -1))
    return jax.vmap(_longest_of_segment)(counted, segments) + 1


def streaming_positions(
    positions: Int[Array | np.ndarray, "batch seq"], *, sinks: int, window: int
) -> Int32[Array, "batch seq"]:
    """Positions in a cache that keeps the first tokens and the newest ones, counted without the gap between them.

        q = p                              for the first `sinks` positions
        q = p - max(0, t + 1 - sinks - window)   for the newest `window`, t the largest position of the row
        q = -1                             for those between, which are forgotten

    The newest token then never stands beyond sinks + window - 1, however long the stream. Keys must be rotated when
    they are read: at these positions, of the tokens in the cache, beside the newest token's as the query.

    Args:
      positions: [batch, seq], in tokens; negative marks padding, which stays -1.
      sinks: first tokens that are kept, at least 0; the paper's number is 4.
      window: newest tokens that are kept, the query's own included; at least 1.

    Raises:
      TypeError, ValueError: positions that are not integers [batch, seq], counts out of range.

    Reference: Xiao et al., arXiv 2309.17453, section 3.2.

    Example:
      >>> streaming_positions(jnp.arange(6)[None], sinks=1, window=2).tolist()
      [[0, -1, -1, -1, 1, 2]]
    """
    positions = check_positions(positions)
    _check_rows(positions, "positions")
    for name, value, least in (("sinks", sinks, 0), ("window", window, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"`{name}` must be an integer; got {value!r}. Count tokens.")
        if not least <= value <= LARGEST_POSITION:
            raise ValueError(f"`{name}` must be from {least} to 2^31 - 1; got {value}. Count tokens.")
    sinks, window = int(sinks), int(window)
    newest = jnp.max(positions, axis=1, keepdims=True)
    # The first position of the window: t + 1 - window, in an order that int32 can hold.
    recent = newest - (window - 1)
    gap = jnp.maximum(jnp.maximum(recent, 0) - sinks, 0)
    kept = jnp.where(positions < sinks, positions, jnp.where(positions >= recent, positions - gap, -1))
    return jnp.where(positions < 0, -1, kept)


def _check_rows(ids: Array, argument: str) -> None:
    if ids.ndim != 2:
        raise ValueError(
            f"`{argument}` must be [batch, seq]; got shape {ids.shape}. Write {argument}[None] for one row."
        )


def _checked_mask(mask: Any) -> Bool[Array, "..."]:
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(f"`mask` must be boolean; got dtype {mask.dtype}. Write `mask == 1`.")
    return mask


def _longest_of_segment(positions: Int32[Array, "seq"], segments: Int32[Array, "seq"]) -> Int32[Array, "seq"]:
    """The largest position of each token's own segment; ids need be neither dense nor sorted."""
    seq = segments.shape[0]
    _, index = jnp.unique(segments, size=seq, return_inverse=True)
    longest = jax.ops.segment_max(positions, index, num_segments=seq)
    return longest[index]

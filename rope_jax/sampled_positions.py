"""Positions drawn at random, to train on short rows for a longer target: what is drawn is where tokens stand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from rope_jax.positions import LARGEST_POSITION, padded_positions


def pose_positions(
    mask: Bool[Array | np.ndarray, "batch seq"], *, length: int, rng: Any, chunks: int = 2
) -> Int32[Array, "batch seq"]:
    """Positions with skips: rows cut into chunks, each chunk moved further along, within the target length.

        chunk i: {u_i + s_i, u_i + s_i + 1, ...},   u_0 = 0,   u_i ~ U{u_(i-1) .. length - n}

    for a row of n real tokens, s_i of them before chunk i. All chunks but the last have U{1 .. floor((n + 1) / chunks)}
    tokens. Neighbours inside a chunk stay neighbours, and every distance below `length` occurs in some draw.

    Args:
      mask: [batch, seq], True where a token is real.
      length: the target, in tokens; at least seq.
      rng: a key of `jax.random`; rows are drawn independently.
      chunks: at least 1, which gives plain positions; the paper's default is 2. A row of fewer tokens has fewer.

    Returns:
      int32 [batch, seq]; padding gets -1.

    Raises:
      TypeError, ValueError: no mask, a length below seq, fewer than one chunk.

    Reference: Zhu et al., arXiv 2309.10400, section 3.2, eq. 3-4; lengths of the first chunk as in its published code.

    Differs from the paper in that only positions are drawn: which text stands in a chunk is the data's affair.

    Example:
      >>> positions = pose_positions(jnp.ones((1, 8), bool), length=64, rng=jax.random.key(0))
      >>> int(positions[0, 0]), bool(positions.max() < 64)
      (0, True)
    """
    index = padded_positions(mask)
    batch, seq = index.shape
    _check_length(length, seq)
    if isinstance(chunks, bool) or not isinstance(chunks, int | np.integer) or chunks < 1:
        raise ValueError(f"`chunks` must be a whole number from 1 on; got {chunks!r}. The usual number is 2.")
    length, chunks = int(length), int(chunks)
    count = jnp.max(index, axis=1) + 1
    most = jnp.maximum((count + 1) // chunks, 1)

    def moved(before: tuple[Array, Array, Array], key: Any) -> tuple[tuple[Array, Array, Array], None]:
        """The skips once one more chunk has its own."""
        start, skip, skips = before
        size_key, skip_key = jax.random.split(key)
        start = start + jax.random.randint(size_key, (batch,), 1, most + 1)
        skip = jax.random.randint(skip_key, (batch,), skip, length - jnp.maximum(count, 1) + 1)
        return (start, skip, jnp.where(index >= start[:, None], skip[:, None], skips)), None

    # A loop of the program: unrolled, 64 chunks would take minutes to compile.
    none = jnp.zeros_like(count)
    (_, _, skips), _ = jax.lax.scan(moved, (none, none, jnp.zeros_like(index)), jax.random.split(rng, chunks - 1))
    return jnp.where(index < 0, -1, index + skips)


def random_positions(
    mask: Bool[Array | np.ndarray, "batch seq"], *, length: int, rng: Any
) -> Int32[Array, "batch seq"]:
    """Rising positions drawn from the whole target length: every set of them is equally likely.

        {p_0 < p_1 < ... < p_(n-1)} a uniform n-subset of {0 .. length - 1}

    for a row of n real tokens.

    Args:
      mask: [batch, seq], True where a token is real.
      length: the target, in tokens; at least seq. Memory grows with batch x length.
      rng: a key of `jax.random`; rows are drawn independently.

    Returns:
      int32 [batch, seq]; padding gets -1.

    Raises:
      TypeError, ValueError: no mask, a length below seq.

    Reference: Ruoss et al., arXiv 2305.16843, section 3.1.

    Example:
      >>> positions = random_positions(jnp.ones((1, 4), bool), length=4, rng=jax.random.key(0))
      >>> positions.tolist()
      [[0, 1, 2, 3]]
    """
    index = padded_positions(mask)
    batch, seq = index.shape
    _check_length(length, seq)

    def drawn(key: UInt32[Array, "..."] | Any) -> Int32[Array, "seq"]:
        return jax.random.permutation(key, jnp.arange(length, dtype=jnp.int32))[:seq]

    # The first n of a random order are a uniform n-subset; the rest are sorted out behind them.
    count = jnp.max(index, axis=1, keepdims=True) + 1
    surplus = jnp.arange(seq, dtype=jnp.int32)[None, :] >= count
    chosen = jnp.sort(jnp.where(surplus, LARGEST_POSITION, jax.vmap(drawn)(jax.random.split(rng, batch))), axis=1)
    return jnp.where(index < 0, -1, jnp.take_along_axis(chosen, jnp.maximum(index, 0), axis=1))


def _check_length(length: Any, seq: int) -> None:
    if isinstance(length, bool) or not isinstance(length, int | np.integer):
        raise TypeError(f"`length` must be an integer; got {length!r}. It is the target, in tokens.")
    if not seq <= length <= LARGEST_POSITION:
        raise ValueError(
            f"`length` must hold the {seq} tokens of a row and be at most 2^31 - 1; got {length}. "
            "Train on shorter rows, or aim further."
        )

"""Dual chunk attention: positions within chunks, and three ways to place a query before the keys of a chunk."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int32

from rope_jax.attention.score_maps.base import Placement, ScoreMap, settle_tokens


@dataclass(frozen=True, kw_only=True)
class DualChunk(ScoreMap):
    """No distance beyond `chunk`: keys stand at their place in a chunk of S = chunk - local tokens.

        key                       p_k mod S
        query, same chunk         p_q mod S
        query, chunk before       min(p_q mod S + S, chunk)
        query, older chunk        min(2 S - 1, chunk)

    so the `local` tokens behind a query keep their distance across the border of two chunks. The published setting is
    chunk = 3/4 and local = 1/16 of the trained length.

    Args:
      chunk: the largest distance, in tokens.
      local: tokens behind a query whose distance stays; at most half of `chunk`.

    Raises:
      TypeError, ValueError: no whole numbers from 1 on; `local` above half of `chunk`.

    Reference: An et al., arXiv 2402.17463, section 3.

    Differs from the published code, whose linear factor divides the queries of the chunk before twice: here
    interpolation is that of the schedule, `PositionInterpolation`.

    Example:
      >>> DualChunk(chunk=3072, local=256).distances([100, 3116, 9000], [2815, 10])[1:].tolist()
      [[257.0, 3062.0], [257.0, 3062.0]]
    """

    chunk: int
    local: int

    def __post_init__(self) -> None:
        settle_tokens(self, "chunk", "local")
        if 2 * self.local > self.chunk:
            raise ValueError(
                f"`local` must be at most half of `chunk` = {self.chunk}, so that the chunk before holds it; got "
                f"{self.local}. A sixteenth of the trained length is usual, with chunks of three quarters."
            )

    @property
    def plain_below(self) -> int:
        """One more than `local`."""
        return self.local + 1

    def placements(self, q_positions: Int32[Array, "_ q"], kv_positions: Int32[Array, "_ kv"]) -> tuple[Placement, ...]:
        """The same chunk, the one before, and all older ones: a pair's key is the chunk it lies in."""
        stride = self.chunk - self.local
        q, kv = q_positions % stride, kv_positions % stride
        keys = q_positions // stride, kv_positions // stride
        after = jnp.minimum(q + stride, self.chunk)
        furthest = jnp.full_like(q, min(2 * stride - 1, self.chunk))
        return (
            Placement(q, kv, 0, 1, *keys),
            Placement(after, kv, 1, 2, *keys),
            Placement(furthest, kv, 2, None, *keys),
        )

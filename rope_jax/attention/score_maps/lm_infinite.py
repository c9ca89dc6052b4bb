"""LM-Infinite: the near past and the first tokens, at distances that the model knows."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int32

from rope_jax.attention.score_maps.base import Placement, ScoreMap, settle_tokens
from rope_jax.positions import LARGEST_POSITION


@dataclass(frozen=True, kw_only=True)
class LMInfinite(ScoreMap):
    """The Lambda-shaped mask with clipped distance: a window, and the first tokens of the document from its far end.

        seen      p_q - p_k < window   or   p_k < global_tokens
        distance  min(p_q - p_k, window)

    Everything in between is not seen: what lies there is lost to the layer.

    Args:
      window: tokens that a query sees, itself included; the trained length, as published.
      global_tokens: first tokens of the document that all see; 10 to 100 as published.

    Raises:
      TypeError, ValueError: no whole numbers from 1 on.

    Reference: Han et al., arXiv 2308.16137, section 4.

    Differs from the published method, which brings some tokens of the middle back by their scores in a few layers.

    Example:
      >>> LMInfinite(window=4, global_tokens=1).distances([9], [0, 1, 6]).tolist()
      [[4.0, nan, 3.0]]
    """

    window: int
    global_tokens: int

    def __post_init__(self) -> None:
        settle_tokens(self, "window", "global_tokens")

    @property
    def plain_below(self) -> int:
        """The window."""
        return self.window

    def placements(self, q_positions: Int32[Array, "_ q"], kv_positions: Int32[Array, "_ kv"]) -> tuple[Placement, ...]:
        """The window, then the first tokens behind it: other keys get a key that no query is behind."""
        q, kv = q_positions, kv_positions
        first = jnp.where(kv < self.global_tokens, kv, LARGEST_POSITION)
        return (
            Placement(q, kv, 0, self.window, q, kv),
            Placement(jnp.full_like(q, self.window), jnp.zeros_like(kv), self.window, None, q, first),
        )

"""ReRoPE and Leaky ReRoPE: distances that stop growing, or grow more slowly, past a window."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int32

from rope_jax.attention.score_maps.base import Placement, ScoreMap, settle_tokens


@dataclass(frozen=True, kw_only=True)
class ReRoPE(ScoreMap):
    """Distances up to `window`, and no further.

        distance = min(p_q - p_k, window)

    Args:
      window: the largest distance, in tokens.

    Raises:
      TypeError, ValueError: no whole number from 1 on.

    Reference: Su, kexue.fm/archives/9708 (2023).

    Example:
      >>> ReRoPE(window=512).distances([511, 513], [0]).ravel().tolist()
      [511.0, 512.0]
    """

    window: int

    def __post_init__(self) -> None:
        settle_tokens(self, "window")

    @property
    def plain_below(self) -> int:
        """The window."""
        return self.window

    def placements(self, q_positions: Int32[Array, "_ q"], kv_positions: Int32[Array, "_ kv"]) -> tuple[Placement, ...]:
        """Far queries all stand at `window`, far keys at 0."""
        q, kv = q_positions, kv_positions
        return (
            Placement(q, kv, 0, self.window, q, kv),
            Placement(jnp.full_like(q, self.window), jnp.zeros_like(kv), self.window, None, q, kv),
        )


@dataclass(frozen=True, kw_only=True)
class LeakyReRoPE(ScoreMap):
    """Distances that grow `factor` times more slowly past `window`.

        distance = min(d, window) + max(d - window, 0) / factor,   d = p_q - p_k

    Args:
      window: tokens whose distance stays.
      factor: above 1; `window * factor` a whole number, so that positions are integers and the phase exact.

    Raises:
      TypeError, ValueError: no whole window from 1 on; a factor of 1 or less, or one that gives broken positions.

    Reference: Su, kexue.fm/archives/9708 (2023).

    Example:
      >>> LeakyReRoPE(window=512, factor=16).distances([1024], [0]).item()
      544.0
    """

    window: int
    factor: float

    def __post_init__(self) -> None:
        settle_tokens(self, "window")
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float):
            raise TypeError(f"`factor` must be a number; got {self.factor!r}. Distances grow that much more slowly.")
        if not 1 < self.factor < math.inf:
            raise ValueError(f"`factor` must be above 1 and finite; got {self.factor}. ReRoPE stops the growth.")
        if not float(self.window * self.factor).is_integer():
            raise ValueError(
                f"`factor` must make `window` * `factor` a whole number for window {self.window}; got {self.factor}. "
                "Round the factor, or the window."
            )
        if self.window * self.factor >= 2**31:
            raise ValueError(
                f"`factor` must keep `window` * `factor` below 2^31; got {self.factor} for window {self.window}. "
                "ReRoPE is the limit of large factors."
            )

    @property
    def plain_below(self) -> int:
        """The window."""
        return self.window

    def placements(self, q_positions: Int32[Array, "_ q"], kv_positions: Int32[Array, "_ kv"]) -> tuple[Placement, ...]:
        """Far pairs turn by (p_q - p_k + window factor - window) / factor; the shift is on the keys, below 0."""
        q, kv, shift = q_positions, kv_positions, int(self.window * self.factor) - self.window
        return (
            Placement(q, kv, 0, self.window, q, kv),
            Placement(q, kv - shift, self.window, None, q, kv, slowdown=float(self.factor)),
        )

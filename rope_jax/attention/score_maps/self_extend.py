"""Self-Extend: far tokens share grouped positions, near ones keep their own."""

from dataclasses import dataclass

from jaxtyping import Array, Int32

from rope_jax.attention.score_maps.base import Placement, ScoreMap, settle_tokens


@dataclass(frozen=True, kw_only=True)
class SelfExtend(ScoreMap):
    """Plain distances below `window`; beyond, positions divided by `group` and rounded down.

        distance = p_q - p_k                                                   p_q - p_k < window
                 = floor(p_q / group) + window - window / group - floor(p_k / group)    otherwise

    A model trained on L tokens reaches (L - window) group + window of them untrained.

    Args:
      group: tokens that share a position; a divisor of `window`.
      window: tokens whose distance stays, the token itself included.

    Raises:
      TypeError, ValueError: no whole numbers from 1 on; a group that does not divide the window.

    Reference: Jin et al., arXiv 2401.01325, section 3.

    Differs from the published code, which divides `window / group` exactly in the prefill and rounds it down in
    decoding, and takes floors of positions in the array, so that padding on the left changes results.

    Example:
      >>> SelfExtend(group=8, window=1024).distances([20_000], [0]).item()
      3396.0
    """

    group: int
    window: int

    def __post_init__(self) -> None:
        settle_tokens(self, "group", "window")
        if self.window % self.group:
            raise ValueError(
                f"`group` must divide `window` = {self.window}, so that both maps meet at whole positions; got "
                f"{self.group}. The nearest window is {self.group * max(1, round(self.window / self.group))}."
            )

    @property
    def plain_below(self) -> int:
        """The window."""
        return self.window

    def placements(self, q_positions: Int32[Array, "_ q"], kv_positions: Int32[Array, "_ kv"]) -> tuple[Placement, ...]:
        """Near pairs by their own positions, far ones by those of their groups."""
        q, kv, shift = q_positions, kv_positions, self.window - self.window // self.group
        return (
            Placement(q, kv, 0, self.window, q, kv),
            Placement(q // self.group + shift, kv // self.group, self.window, None, q, kv),
        )

"""Proportional RoPE (p-RoPE): the slowest pairs do not turn."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, pair_index
from rope_jax.scaling.checks import check_number


@dataclass(frozen=True, kw_only=True)
class Proportional(FrequencyTransform):
    """Keep the fastest pairs of the whole head and set the others' frequency to zero.

        inv_freq_i' = inv_freq_i if i < floor(fraction head_dim / 2) else 0

    Args:
      fraction: share of the pairs that turns, above 0 and at most 1. A Python number: it decides a count.

    Reference: Barbero et al., arXiv 2410.06205, sec. 6.

    Differs from partial rotary (a schedule narrower than the head), which spreads its exponents over the narrower
    width and lets the other channels pass through; here they stay in the pairs of the whole head.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> Proportional(fraction=0.5)(geometric_schedule(8)).inv_freq[2:].tolist()
      [0.0, 0.0]
    """

    fraction: float

    def check(self) -> None:
        """The fraction is a Python number in (0, 1]."""
        if not isinstance(self.fraction, (int, float)):
            raise TypeError(f"`fraction` must be a Python number; got {self.fraction!r}.")
        check_number("fraction", self.fraction, "above 0 and at most 1", lambda v: 0 < v <= 1)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """Zero from the first pair beyond the share on."""
        turning = int(self.fraction * 2 * inv_freq.shape[-1] // 2)
        return xp.where(pair_index(xp, inv_freq) < turning, inv_freq, 0.0), attention_scale

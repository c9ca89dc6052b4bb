"""Rescale: any factor per pair."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, per_pair
from rope_jax.scaling.checks import check_entries


@dataclass(frozen=True, kw_only=True)
class Rescale(FrequencyTransform):
    """Divide each pair by its own factor: `inv_freq_i / factors_i`.

    The free form behind searched and learned schedules (LongRoPE without its switch and scale).

    Args:
      factors: one positive number per rotary pair, or an array [pairs] to differentiate or search over.

    Raises when the list does not match the schedule's pairs.

    Reference: Ding et al., arXiv 2402.13753, eq. 2.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> Rescale(factors=[1, 2])(geometric_schedule(4)).inv_freq[1].item()
      0.004999999888241291
    """

    factors: Any

    def check(self) -> None:
        """Positive entries."""
        check_entries("factors", self.factors)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """`inv_freq / factors`."""
        return inv_freq / per_pair(xp, self.factors, inv_freq, "factors"), attention_scale

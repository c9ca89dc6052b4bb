"""Position interpolation: every pair slower by the same factor."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, Number
from rope_jax.scaling.checks import check_factor


@dataclass(frozen=True, kw_only=True)
class PositionInterpolation(FrequencyTransform):
    """Squeeze positions into the trained range: `inv_freq_i / factor`, the same as `position / factor`.

    Applies at every length, short ones too; published use fine-tunes afterwards.

    Args:
      factor: target length / trained length, at least 1.

    Reference: Chen et al., arXiv 2306.15595, eq. 4.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> PositionInterpolation(factor=4.0)(geometric_schedule(8)).inv_freq[0].item()
      0.25
    """

    factor: Number

    def check(self) -> None:
        """The factor is at least 1."""
        check_factor(self.factor)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """`inv_freq / factor`."""
        return inv_freq / self.factor, attention_scale

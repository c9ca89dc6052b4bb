"""Drop: no rotation."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform


@dataclass(frozen=True, kw_only=True)
class Drop(FrequencyTransform):
    """Stop every pair: `inv_freq_i' = 0`. The attention scale stays.

    Reference: DroPE, arXiv 2512.12167 (drop the rotation after pretraining, recalibrate at the original length).

    Example:
      >>> from rope_jax import geometric_schedule
      >>> Drop()(geometric_schedule(4)).inv_freq.tolist()
      [0.0, 0.0]
    """

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """All frequencies zero."""
        return xp.zeros_like(inv_freq), attention_scale

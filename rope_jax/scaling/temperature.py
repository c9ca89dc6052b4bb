"""Attention temperature through the rotation."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, Number
from rope_jax.scaling.checks import check_scale


@dataclass(frozen=True, kw_only=True)
class AttentionTemperature(FrequencyTransform):
    """Multiply the attention scale: `attention_scale' = attention_scale scale`.

    The scale multiplies cos and sin of queries and keys, so the logits of rotated channels grow by its square;
    channels that pass through are not touched, and a norm applied after the rotation would cancel it.

    Args:
      scale: above 0; YaRN's is `0.1 ln factor + 1`.

    Reference: Peng et al., arXiv 2309.00071, sec. 3.4 (there `scale = 1 / sqrt(t)`).

    Example:
      >>> from rope_jax import geometric_schedule
      >>> AttentionTemperature(scale=1.5)(geometric_schedule(4)).attention_scale.item()
      1.5
    """

    scale: Number

    def check(self) -> None:
        """The scale is above 0."""
        check_scale(self.scale, "scale")

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """`attention_scale * scale`."""
        return inv_freq, attention_scale * self.scale

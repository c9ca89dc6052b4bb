"""LongRoPE: one searched factor per pair, short and long lists."""

import math
from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, Number, per_pair
from rope_jax.scaling.checks import check_entries, check_factor, check_number, check_original_length, check_scale


@dataclass(frozen=True, kw_only=True)
class LongRoPE(FrequencyTransform):
    """Divide each pair by its own factor, from the long list strictly beyond the trained length.

        inv_freq_i' = inv_freq_i / (long_i if length > original_length else short_i)
        attention_scale' = attention_scale sqrt(1 + ln factor / ln original_length)     at every length, 1 for factor 1

    Args:
      short_factors, long_factors: one positive number per rotary pair; lists of equal length.
      original_length: tokens the model was trained on, at least 2.
      factor: target length / trained length; feeds the attention scale only.
      attention_scale: replaces the formula when given; above 0.

    Raises without `length`, and when the lists do not match the schedule's pairs.

    Reference: Ding et al., arXiv 2402.13753, sec. 3; the scale as in the Phi-3 configurations.

    Differs from the paper in that the first tokens are scaled like all others, as in every released checkpoint.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> method = LongRoPE(short_factors=(1, 1), long_factors=(1, 4), original_length=16, factor=4.0)
      >>> [round(method(geometric_schedule(4), length=n).inv_freq[1].item(), 6) for n in (16, 17)]
      [0.01, 0.0025]
    """

    needs_length = True

    short_factors: Any
    long_factors: Any
    original_length: Number
    factor: Number
    attention_scale: Number | None = None

    def check(self) -> None:
        """Lists of equal length with positive entries; the numbers as documented."""
        check_entries("short_factors", self.short_factors)
        check_entries("long_factors", self.long_factors)
        short, long = (v.shape[-1] if hasattr(v, "shape") else len(v) for v in (self.short_factors, self.long_factors))
        if short != long:
            raise ValueError(f"`long_factors` must be as long as `short_factors`; got {long} and {short} entries.")
        check_original_length(self.original_length)
        check_number("original_length", self.original_length, "at least 2", lambda v: v >= 2)
        check_factor(self.factor)
        if self.attention_scale is not None:
            check_scale(self.attention_scale)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """The list of this length, and the scale of the factor."""
        short = per_pair(xp, self.short_factors, inv_freq, "short_factors")
        long = per_pair(xp, self.long_factors, inv_freq, "long_factors")
        divisor = xp.where(xp.asarray(length) > self.original_length, long, short)
        return inv_freq / divisor, attention_scale * self._scale(xp)

    def _scale(self, xp: Any) -> Any:
        if self.attention_scale is not None:
            return self.attention_scale
        log = math.log if all(isinstance(v, (int, float)) for v in (self.factor, self.original_length)) else xp.log
        return (1 + log(self.factor) / log(self.original_length)) ** 0.5

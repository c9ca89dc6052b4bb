"""Llama 3's frequency scaling."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, Number
from rope_jax.scaling.by_parts import by_parts
from rope_jax.scaling.checks import check_factor, check_number, check_original_length


@dataclass(frozen=True, kw_only=True)
class Llama3(FrequencyTransform):
    """Llama 3.1's scaling, which is NTK-by-parts in turns with other bounds and no temperature.

        z_i = clip((rho_i - low) / (high - low), 0, 1);   inv_freq_i' = (1 - z_i) inv_freq_i / factor + z_i inv_freq_i

    with `rho_i` the turns within the trained length. The published code writes it as three branches on the wavelength.

    Args:
      factor: 8 for Llama 3.1 and 3.3, 32 for Llama 3.2 1B and 3B; at least 1.
      original_length: 8192 in the published models.
      low_freq_factor: turns below which a pair is divided by the factor.
      high_freq_factor: turns above which it is left alone; above `low_freq_factor`.

    Reference: Grattafiori et al., arXiv 2407.21783; the constants are those of the released configurations.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> schedule = Llama3(factor=32.0, original_length=8192)(geometric_schedule(64, theta=5e5))
      >>> round(schedule.inv_freq[16].item(), 12)
      0.000429556792
    """

    factor: Number
    original_length: Number
    low_freq_factor: Number = 1.0
    high_freq_factor: Number = 4.0

    def check(self) -> None:
        """The factor is at least 1, and 0 <= low < high."""
        check_factor(self.factor)
        check_original_length(self.original_length)
        low, high = self.low_freq_factor, self.high_freq_factor
        check_number("low_freq_factor", low, "at least 0 turns", lambda v: v >= 0)
        check_number("high_freq_factor", high, "above 0 turns", lambda v: v > 0)
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low >= high:
            raise ValueError(f"`low_freq_factor` must be below `high_freq_factor`; got {low} and {high}. Swap them?")

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """NTK-by-parts between the two bounds."""
        bounds = (self.low_freq_factor, self.high_freq_factor)
        return by_parts(xp, inv_freq, self.factor, self.original_length, bounds), attention_scale

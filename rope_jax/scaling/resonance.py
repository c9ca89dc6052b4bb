"""Resonance RoPE: whole wavelengths."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rope_jax.scaling.base import Edited, FrequencyTransform


@dataclass(frozen=True, kw_only=True)
class Resonance(FrequencyTransform):
    """Round every wavelength to whole tokens: `inv_freq_i' = 2 pi / round(2 pi / inv_freq_i)`.

    cos and sin then repeat with an integer period, so positions beyond the trained ones meet no new angle in the pairs
    that finished a turn. Apply it after the method it refines; pairs that do not turn stay still.

    Reference: Wang et al., arXiv 2403.00071, sec. 4.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> Resonance()(geometric_schedule(8)).inv_freq[0].item()
      1.0471975803375244
    """

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """Wavelengths of whole tokens."""
        turning = inv_freq > 0
        wavelength = xp.round(2 * math.pi / xp.where(turning, inv_freq, 1.0))
        if xp is np and np.any(turning & (wavelength < 1)):
            raise ValueError(
                f"`schedule` must have wavelengths of at least half a token for Resonance; got {inv_freq.max()} "
                "radians per token. Frequencies above one radian are not RoPE's."
            )
        return xp.where(turning, 2 * math.pi / wavelength, 0.0), attention_scale

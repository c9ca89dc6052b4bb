"""Base change: another theta."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rope_jax.scaling.base import Edited, FrequencyTransform, Number, log_theta, pair_index
from rope_jax.schedule import check_theta


@dataclass(frozen=True, kw_only=True)
class BaseChange(FrequencyTransform):
    """Replace the base: `inv_freq_i = inv_freq_0 theta^(-2 i / d)`.

    Also called adjusted base frequency (ABF): raise theta, then train on.

    Args:
      theta: the new base, above 1.

    Raises on a schedule that is not geometric or has one pair.

    Reference: Xiong et al., arXiv 2309.16039, sec. 2; Roziere et al. (Code Llama), arXiv 2308.12950.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> BaseChange(theta=1e4)(geometric_schedule(8, theta=5e5)).inv_freq[1].item()
      0.10000000149011612
    """

    theta: Number

    def check(self) -> None:
        """The base is a finite number above 1."""
        if not isinstance(self.theta, (jax.Array, np.ndarray)):
            check_theta(self.theta)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """The geometric spectrum of the new base from the same first pair."""
        log_theta(xp, inv_freq, "BaseChange")  # only to refuse a spectrum that has no base
        index = pair_index(xp, inv_freq)
        return inv_freq[..., :1] * self.theta ** (-index / inv_freq.shape[-1]), attention_scale

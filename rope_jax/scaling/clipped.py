"""Clipped RoPE: the slowest pairs fade out instead of turning out of their trained range."""

import math
from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, pair_index


@dataclass(frozen=True, kw_only=True)
class ClippedRoPE(FrequencyTransform):
    """Damp the slowest pairs with half a cosine: the first of them keeps its frequency, the last one stops.

        inv_freq_(n-m+j)' = inv_freq_(n-m+j) (1 + cos(pi j / (m - 1))) / 2,   j = 0 .. m - 1

    Args:
      pairs: m, how many of the n pairs are damped; at least 2 (20 of 64 as published).

    Raises when the schedule has fewer pairs.

    Reference: arXiv 2602.05258.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> ClippedRoPE(pairs=2)(geometric_schedule(8)).inv_freq[2:].tolist()
      [0.009999999776482582, 0.0]
    """

    pairs: int

    def check(self) -> None:
        """A whole number of at least 2."""
        if isinstance(self.pairs, bool) or not isinstance(self.pairs, int):
            raise TypeError(f"`pairs` must be an integer; got {self.pairs!r}.")
        if self.pairs < 2:
            raise ValueError(f"`pairs` must be at least 2, since the last one stops; got {self.pairs}.")

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """Half a cosine over the last `pairs` pairs."""
        first = inv_freq.shape[-1] - self.pairs
        if first < 0:
            raise ValueError(f"`pairs` must be at most the schedule's {inv_freq.shape[-1]}; got {self.pairs}.")
        step = xp.maximum(pair_index(xp, inv_freq) - first, 0.0) / (self.pairs - 1)
        damped = inv_freq * (0.5 * (1 + xp.cos(math.pi * step)))
        # cos(pi) is -1 to the last digit, so the slowest pair stops exactly.
        return xp.where(step > 0, damped, inv_freq), attention_scale

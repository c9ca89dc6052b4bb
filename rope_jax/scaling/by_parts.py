"""NTK-by-parts: interpolate the slow pairs, leave the fast ones, blend between, linearly in turns."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, Number, blend, turns
from rope_jax.scaling.checks import check_factor, check_number, check_original_length


@dataclass(frozen=True, kw_only=True)
class NTKByParts(FrequencyTransform):
    """Treat each pair by how often it turns within the trained length.

        rho_i   = original_length inv_freq_i / 2 pi
        gamma_i = clip((rho_i - alpha) / (beta - alpha), 0, 1)
        inv_freq_i' = (1 - gamma_i) inv_freq_i / factor + gamma_i inv_freq_i

    Args:
      factor: target length / trained length, at least 1.
      original_length: tokens the model was trained on.
      alpha: pairs with fewer turns are fully interpolated.
      beta: pairs with more turns are left alone; above `alpha`.

    Reference: Peng et al., arXiv 2309.00071, eqs. 11 to 13 (Definition 1).

    Differs from the code published with the paper, which blends over two ramps in the pair index; for the ramp that
    checkpoints use see `YaRN(ramp="index")`.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> NTKByParts(factor=4.0, original_length=2048)(geometric_schedule(8)).inv_freq[-1].item()
      0.0002500000118743628
    """

    factor: Number
    original_length: Number
    alpha: Number = 1.0
    beta: Number = 32.0

    def check(self) -> None:
        """The factor is at least 1, and 0 <= alpha < beta."""
        check_factor(self.factor)
        check_original_length(self.original_length)
        check_number("alpha", self.alpha, "at least 0 turns", lambda v: v >= 0)
        check_number("beta", self.beta, "above 0 turns", lambda v: v > 0)
        if isinstance(self.alpha, (int, float)) and isinstance(self.beta, (int, float)) and self.alpha >= self.beta:
            raise ValueError(f"`alpha` must be below `beta`; got alpha {self.alpha}, beta {self.beta}. Swap them?")

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """Kept as it is above beta turns, divided by the factor below alpha turns."""
        return by_parts(xp, inv_freq, self.factor, self.original_length, (self.alpha, self.beta)), attention_scale


def by_parts(xp: Any, inv_freq: Any, factor: Any, original_length: Any, bounds: tuple[Any, Any]) -> Any:
    """The frequencies: interpolated below the first bound of turns, kept above the second."""
    alpha, beta = bounds
    ramp = (turns(xp, inv_freq, original_length) - alpha) / (beta - alpha)
    return blend(inv_freq, xp.clip(ramp, 0.0, 1.0), factor)

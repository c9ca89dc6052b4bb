"""NTK-aware scaling: a larger base, so the slowest pair is interpolated and the fastest left alone."""

from dataclasses import dataclass
from typing import Any

from rope_jax.scaling.base import Edited, FrequencyTransform, Number, log_theta, pair_index
from rope_jax.scaling.checks import check_factor, check_original_length


def stretched(xp: Any, inv_freq: Any, alpha: Any, method: str) -> Any:
    """The spectrum of base `theta alpha^(d / (d - 2))`: pair i divided by `alpha^(i / (pairs - 1))`."""
    log_theta(xp, inv_freq, method)  # only to refuse a spectrum that has no base
    return inv_freq * alpha ** (-pair_index(xp, inv_freq) / (inv_freq.shape[-1] - 1))


@dataclass(frozen=True, kw_only=True)
class NTKAware(FrequencyTransform):
    """Raise the base: `theta' = theta factor^(d / (d - 2))`; the last pair is divided by exactly `factor`.

    Args:
      factor: the NTK alpha, at least 1. Called alpha where it was published, where it need not be target / trained
        length.

    Raises on a schedule that is not geometric or has one pair.

    Reference: bloc97, "NTK-aware scaled RoPE" (r/LocalLLaMA, 2023); analysed in Peng et al., arXiv 2309.00071.

    Differs from the later "ntk fixed" form, which also divides the first pair.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> NTKAware(factor=4.0)(geometric_schedule(8)).inv_freq[-1].item()
      0.0002500000118743628
    """

    factor: Number

    def check(self) -> None:
        """The factor is at least 1."""
        check_factor(self.factor)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """`inv_freq_i factor^(-i / (pairs - 1))`."""
        return stretched(xp, inv_freq, self.factor, "NTKAware"), attention_scale


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(FrequencyTransform):
    """NTK-aware with an alpha that follows the length at hand.

        alpha = factor length / original_length - (factor - 1)   beyond the original length, else 1

    A pure function of `length`: nothing is remembered from an earlier sequence, and a length per row gives every row
    its own schedule.

    Args:
      factor: at least 1; alpha grows by `factor` per original length.
      original_length: tokens the model was trained on.

    Raises without `length`, and on a schedule that is not geometric or has one pair.

    Reference: emozilla, "Dynamically scaled RoPE" (r/LocalLLaMA, 2023); Peng et al., arXiv 2309.00071, app. A.

    Differs from implementations that keep the largest length seen, or fix alpha at `factor^2 - factor + 1`.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> DynamicNTK(factor=2.0, original_length=2048)(geometric_schedule(8), length=4096).inv_freq[-1].item()
      0.00033333332976326346
    """

    needs_length = True

    factor: Number
    original_length: Number

    def check(self) -> None:
        """The factor is at least 1, the original length at least 1 token."""
        check_factor(self.factor)
        check_original_length(self.original_length)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """The NTK-aware spectrum at the alpha of this length."""
        # Beyond the original length alpha exceeds 1; up to it the maximum leaves exactly 1.
        alpha = xp.maximum(self.factor * (xp.asarray(length) / self.original_length) - (self.factor - 1), 1.0)
        return stretched(xp, inv_freq, alpha, "DynamicNTK"), attention_scale

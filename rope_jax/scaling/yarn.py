"""YaRN and its dynamic form."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from rope_jax.scaling.base import Edited, FrequencyTransform, Number, blend, log_theta, pair_index
from rope_jax.scaling.by_parts import by_parts
from rope_jax.scaling.checks import check_factor, check_number, check_original_length, check_scale


@dataclass(frozen=True, kw_only=True)
class YaRN(FrequencyTransform):
    """NTK-by-parts with a temperature, the ramp linear in the pair index as in every released checkpoint.

        c(r)  = pairs ln(L inv_freq_0 / (2 pi r)) / ln theta             the pair index that makes r turns in L
        lo    = max(floor c(beta_fast), 0),  hi = min(ceil c(beta_slow), 2 pairs - 1)
        kappa = clip((i - lo) / (hi - lo), 0, 1)
        inv_freq_i'      = (1 - kappa_i) inv_freq_i + kappa_i inv_freq_i / factor
        attention_scale' = attention_scale (0.1 ln factor + 1)

    Args:
      factor: target length / trained length, at least 1.
      original_length: L, tokens the model was trained on.
      beta_fast, beta_slow: turns in L above which a pair is left alone, below which it is interpolated.
      truncate: round lo down and hi up (the default of published code; gpt-oss does not).
      ramp: "index" as above; "turns" as in the paper's equations (NTK-by-parts), up to 3 times apart in the middle.
      attention_scale: replaces the formula; above 0. 1 is the paper's NTK-by-parts.
      mscale, mscale_all_dim: DeepSeek's form `M(mscale) / M(mscale_all_dim)`, `M(m) = 0.1 m ln factor + 1`; an absent
        `mscale_all_dim` counts as 0, an absent `mscale` beside the other as 1.

    Raises (index ramp) on a schedule that is not geometric or has one pair.

    Reference: Peng et al., arXiv 2309.00071, sec. 3; the index ramp, its rounding and clamps as in the code published
    with it; mscale as in DeepSeek-V2, arXiv 2405.04434.

    Differs from transformers 5.24, which ignores `mscale` unless `mscale_all_dim` stands beside it
    (1.3689 where DeepSeek has 1.2608 at mscale 0.707, factor 40).

    Example:
      >>> from rope_jax import geometric_schedule
      >>> round(YaRN(factor=4.0, original_length=2048)(geometric_schedule(128)).attention_scale.item(), 6)
      1.138629
    """

    factor: Number
    original_length: Number
    beta_fast: Number = 32.0
    beta_slow: Number = 1.0
    truncate: bool = True
    ramp: Literal["index", "turns"] = "index"
    attention_scale: Number | None = None
    mscale: Number | None = None
    mscale_all_dim: Number | None = None

    def check(self) -> None:
        """The factor is at least 1; the options as documented."""
        check_factor(self.factor)
        check_options(self)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """The ramp between plain and interpolated, and the temperature."""
        return yarn(self, xp, inv_freq, attention_scale, self.factor)


@dataclass(frozen=True, kw_only=True)
class DynamicYaRN(FrequencyTransform):
    """YaRN with the factor of the length at hand: `max(factor, length / original_length)`.

    A pure function of `length`, so one sequence leaves nothing behind for the next.

    Args:
      original_length: tokens the model was trained on.
      factor: the least factor, 1 for a model that was not trained further, the trained one otherwise.
      others: as `YaRN`.

    Raises without `length`, and as `YaRN`.

    Reference: Peng et al., arXiv 2309.00071, sec. 3.3 and app. A.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> DynamicYaRN(original_length=2048)(geometric_schedule(128), length=2048).attention_scale.item()
      1.0
    """

    needs_length = True

    original_length: Number
    factor: Number = 1.0
    beta_fast: Number = 32.0
    beta_slow: Number = 1.0
    truncate: bool = True
    ramp: Literal["index", "turns"] = "index"
    attention_scale: Number | None = None
    mscale: Number | None = None
    mscale_all_dim: Number | None = None

    def check(self) -> None:
        """The least factor is at least 1; the options as documented."""
        check_factor(self.factor)
        check_options(self)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """YaRN at the factor of this length."""
        factor = xp.maximum(xp.asarray(length) / self.original_length, self.factor)
        return yarn(self, xp, inv_freq, attention_scale, factor)


def check_options(options: YaRN | DynamicYaRN) -> None:
    """The rules that both forms share."""
    check_original_length(options.original_length)
    check_number("beta_fast", options.beta_fast, "above 0 turns", lambda v: v > 0)
    check_number("beta_slow", options.beta_slow, "above 0 turns", lambda v: v > 0)
    fast, slow = options.beta_fast, options.beta_slow
    known = isinstance(fast, (int, float)) and isinstance(slow, (int, float))
    # Equal turns leave a step in the index ramp, as released checkpoints have it; in turns there is no ramp then.
    if known and (fast < slow or (fast == slow and options.ramp == "turns")):
        raise ValueError(
            f"`beta_fast` must be above `beta_slow`, or equal to it in the index ramp; got {fast} and {slow}. "
            "Fast pairs make more turns."
        )
    if not isinstance(options.truncate, bool):
        raise TypeError(f"`truncate` must be True or False; got {options.truncate!r}.")
    if options.ramp not in ("index", "turns"):
        raise ValueError(f'`ramp` must be "index" or "turns"; got {options.ramp!r}.')
    if options.attention_scale is not None:
        check_scale(options.attention_scale)
    for name in ("mscale", "mscale_all_dim"):
        if getattr(options, name) is not None:
            check_number(name, getattr(options, name), "at least 0", lambda v: v >= 0)


def yarn(options: YaRN | DynamicYaRN, xp: Any, inv_freq: Any, attention_scale: Any, factor: Any) -> Edited:
    """Both forms: the ramp and the temperature at one factor."""
    if options.ramp == "turns":
        bounds = (options.beta_slow, options.beta_fast)
        inv_freq = by_parts(xp, inv_freq, factor, options.original_length, bounds)
    else:
        inv_freq = blend(inv_freq, 1 - index_ramp(options, xp, inv_freq), factor)
    return inv_freq, attention_scale * temperature(options, xp, factor)


def index_ramp(options: YaRN | DynamicYaRN, xp: Any, inv_freq: Any) -> Any:
    """kappa: 0 where a pair is left alone, 1 where it is fully interpolated."""
    pairs = inv_freq.shape[-1]
    slope = log_theta(xp, inv_freq, type(options).__name__) / pairs

    def corner(turns: Any) -> Any:
        return xp.log(options.original_length * inv_freq[..., :1] / (2 * math.pi * turns)) / slope

    low, high = corner(options.beta_fast), corner(options.beta_slow)
    if options.truncate:
        low, high = xp.floor(low), xp.ceil(high)
    # The published clamp is the width less one, not the pairs less one; the ramp may end beyond the last pair.
    low, high = xp.maximum(low, 0.0), xp.minimum(high, 2.0 * pairs - 1)
    if xp is np and np.any(high < low):
        raise ValueError(
            f"`original_length` must let some pair make `beta_slow` = {options.beta_slow} turns; got "
            f"{options.original_length} tokens. Lower beta_slow, or use position interpolation."
        )
    high = xp.where(high == low, high + 0.001, high)
    return xp.clip((pair_index(xp, inv_freq) - low) / (high - low), 0.0, 1.0)


def temperature(options: YaRN | DynamicYaRN, xp: Any, factor: Any) -> Any:
    """The factor's attention scale: the explicit one, DeepSeek's quotient, or `0.1 ln factor + 1`."""
    if options.attention_scale is not None:
        return options.attention_scale
    # log of a factor of exactly 1 is 0, so no case is needed for it.
    log = xp.log(factor) if isinstance(factor, (jax.Array, np.ndarray, np.generic)) else math.log(factor)
    if options.mscale is None and options.mscale_all_dim is None:
        return 0.1 * log + 1
    mscale = 1.0 if options.mscale is None else options.mscale
    all_dim = 0.0 if options.mscale_all_dim is None else options.mscale_all_dim
    return (0.1 * mscale * log + 1) / (0.1 * all_dim * log + 1)

"""Rules that sharpen attention as the context grows: a factor on queries, hence on logits, at every position.

Attention over more keys is flatter; each rule undoes that its own way. All give 1 for padding (a negative position).
`RopeSpec(query_scale=...)` carries one; logits of the whole head grow by it, rotated channels or not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from rope_jax.float64 import nearest
from rope_jax.positions import check_positions
from rope_jax.scaling.checks import check_number, check_original_length

_COUNT = "Count tokens."


@dataclass(frozen=True, kw_only=True)
class LogN:
    """Log-n scaling: entropy of attention that does not grow beyond the trained length.

        scale(p) = max(1, ln(p + 1) / ln(original_length))

    Args:
      original_length: tokens the model was trained on, at least 2.

    Raises:
      TypeError, ValueError: no number, or below 2.

    Differs from `Llama4QueryScale` in that it grows without steps and needs no factor of its own.

    Reference: Su, kexue.fm/archives/8823; `use_logn_attn` of Qwen.

    Example:
      >>> LogN(original_length=1024)([1023, 1024**2 - 1]).tolist()
      [1.0, 2.0]
    """

    original_length: float

    def __post_init__(self) -> None:
        check_number("original_length", self.original_length, "at least 2", lambda v: v >= 2, _COUNT)

    def __call__(self, positions: Any) -> Float32[Array, "..."]:
        """The factor on the query at each position."""
        return _scaled(lambda xp, p: xp.maximum(xp.log1p(p) / float(np.log(self.original_length)), 1.0), positions)


@dataclass(frozen=True, kw_only=True)
class Llama4QueryScale:
    """Llama 4's temperature, on the queries of its layers without rotation.

        scale(p) = 1 + scale ln(1 + floor((p + 1) / floor))

    Args:
      scale: `attn_scale` of the configuration, at least 0.
      floor: `floor_scale` of the configuration, in tokens, at least 1.

    Raises:
      TypeError, ValueError: no number, or out of range.

    Differs from `Mistral3QueryScale` by one position: the first step is at `floor - 1`.

    Example:
      >>> [round(Llama4QueryScale()(p).item(), 4) for p in (0, 8191)]
      [1.0, 1.0693]
    """

    scale: float = 0.1
    floor: int = 8192

    def __post_init__(self) -> None:
        check_number("scale", self.scale, "at least 0", lambda v: v >= 0)
        check_number("floor", self.floor, "at least 1", lambda v: v >= 1, _COUNT)

    def __call__(self, positions: Any) -> Float32[Array, "..."]:
        """The factor on the query at each position."""
        return _scaled(lambda xp, p: 1.0 + self.scale * xp.log1p(xp.floor((p + 1.0) / self.floor)), positions)


@dataclass(frozen=True, kw_only=True)
class Mistral3QueryScale:
    """The temperature of Ministral 3 and Mistral 4.

        scale(p) = 1 + beta ln(1 + floor(p / original_length))

    Args:
      beta: `llama_4_scaling_beta` of the configuration, at least 0.
      original_length: tokens the model was trained on.

    Raises:
      TypeError, ValueError: no number, or out of range.

    Example:
      >>> rule = Mistral3QueryScale(beta=0.1, original_length=16384)
      >>> [round(rule(p).item(), 4) for p in (16383, 16384)]
      [1.0, 1.0693]
    """

    beta: float
    original_length: int

    def __post_init__(self) -> None:
        check_number("beta", self.beta, "at least 0", lambda v: v >= 0)
        check_original_length(self.original_length)

    def __call__(self, positions: Any) -> Float32[Array, "..."]:
        """The factor on the query at each position."""
        return _scaled(lambda xp, p: 1.0 + self.beta * xp.log1p(xp.floor(p / self.original_length)), positions)


def _scaled(formula: Callable[..., Any], positions: Any) -> Float32[Array, "..."]:
    """The formula where tokens are real, 1 for padding."""
    positions = check_positions(positions)
    return jnp.where(positions < 0, jnp.float32(1), nearest(formula, jnp.maximum(positions, 0)))

"""Published rules that scale queries by their position."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass(frozen=True)
class Llama4QueryScale:
    """Queries of Llama 4's layers without rotation: `1 + scale ln(1 + floor((position + 1) / floor))`.

    Args:
      scale: `attn_scale` of the configuration.
      floor: `floor_scale` of the configuration, in tokens.

    Differs from `Mistral3QueryScale` by one position: the first step is at `floor - 1`.

    Example:
      >>> [round(Llama4QueryScale()(p).item(), 4) for p in (0, 8191)]
      [1.0, 1.0693]
    """

    scale: float = 0.1
    floor: int = 8192

    def __call__(self, positions: Any) -> Float[Array, "..."]:
        """The factor on the query at each position."""
        # (p + 1) // floor without leaving int32 at the last position.
        positions = jnp.asarray(positions)
        steps = positions // self.floor + (positions % self.floor == self.floor - 1).astype(positions.dtype)
        return 1 + self.scale * jnp.log1p(jnp.maximum(steps, 0).astype(jnp.float32))


@dataclass(frozen=True)
class Mistral3QueryScale:
    """Queries of Ministral 3 and Mistral 4: `1 + beta ln(1 + floor(position / original_length))`.

    Args:
      beta: `llama_4_scaling_beta` of the configuration.
      original_length: tokens the model was trained on.

    Example:
      >>> [round(Mistral3QueryScale(0.1, 16384)(p).item(), 4) for p in (16383, 16384)]
      [1.0, 1.0693]
    """

    beta: float
    original_length: int

    def __call__(self, positions: Any) -> Float[Array, "..."]:
        """The factor on the query at each position."""
        steps = jnp.asarray(positions) // self.original_length
        return 1 + self.beta * jnp.log1p(jnp.maximum(steps, 0).astype(jnp.float32))

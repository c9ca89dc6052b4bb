"""Other ways to tell a model where a token stands, to compare RoPE with."""

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float32, Int32

from rope_jax.positions import is_traced
from rope_jax.schedule import geometric_schedule
from rope_jax.table import rotary_table

_THETA = 10_000.0


class LearnedPositions(nnx.Module):
    """A learned vector per position: the kind that cannot reach past its table."""

    def __init__(self, max_length: int, embed: int, *, rngs: nnx.Rngs) -> None:
        self.table = nnx.Param(0.1 * nnx.initializers.normal(1.0)(rngs.params(), (max_length, embed), jnp.float32))

    def __call__(self, positions: Int32[Array, "rows seq"]) -> Float32[Array, "rows seq embed"]:
        """The rows at `positions`: zeros for padding, an error or (traced) NaN past the table, never another's row."""
        table = self.table[...]
        furthest = -1 if is_traced(positions) else int(np.asarray(positions).max(initial=-1))
        if furthest >= table.shape[0]:
            raise ValueError(
                f"`positions` must be below the {table.shape[0]} rows of the learned table; got "
                f"{furthest}. Learned positions end there; RoPE does not."
            )
        rows = table.at[jnp.maximum(positions, 0)].get(mode="fill", fill_value=jnp.nan)
        return jnp.where((positions < 0)[..., None], 0.0, rows)


def sinusoids(positions: Int32[Array, "rows seq"], embed: int) -> Float32[Array, "rows seq embed"]:
    """sin(p w_i), cos(p w_i) in turn, with w_i = 10000^(-2 i / embed) (arXiv 1706.03762, section 3.5)."""
    table = rotary_table(geometric_schedule(embed, theta=_THETA), positions)
    return jnp.stack([table.sin, table.cos], axis=-1).reshape(*positions.shape, embed)


def alibi_slopes(heads: int) -> Float32[Array, "heads"]:
    """2^(-8 h / heads) for h = 1 .. heads (arXiv 2108.12409, section 3).

    When heads is no power of two, the slopes of the power below, then every other one of twice that power.
    """
    below = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * below + 1, 2) / below)
    return jnp.asarray(np.concatenate([slopes, between])[:heads].astype(np.float32))

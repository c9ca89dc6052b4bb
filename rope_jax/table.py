"""The rotary table: cos and sin of a schedule at positions.

Axes: `batch` any leading axes, `seq` tokens, `pairs` = rotary width / 2.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from rope_jax.phase import angle, turns_per_token
from rope_jax.positions import check_positions
from rope_jax.schedule import FrequencySchedule

Phase = Literal["exact", "float32"]

# Blocks of positions in the loop that keeps a table from being computed again; one would be inlined.
_BLOCKS = 2


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class RotaryTable:
    """cos and sin of every pair at every position, times the attention scale: each [*batch, seq, pairs] float32.

    A table per kv head has one more axis: [*batch, seq, kv_heads, pairs].
    """

    cos: Float32[Array, "*batch seq pairs"]
    sin: Float32[Array, "*batch seq pairs"]

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Array], ...], None]:
        """The leaves with their names, for jax."""
        return tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in ("cos", "sin")), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> "RotaryTable":
        """A table from leaves that may be placeholders, hence without the constructor's checks."""
        table = object.__new__(cls)
        for name, leaf in zip(("cos", "sin"), leaves, strict=True):
            object.__setattr__(table, name, leaf)
        return table


class _Frequency(NamedTuple):
    inv_freq: Array
    residual: Array


def rotary_table(
    schedule: FrequencySchedule,
    positions: Int[Array, "*batch seq"] | Any,
    *,
    phase: Phase = "exact",
    pair_axes: tuple[int, ...] | None = None,
) -> RotaryTable:
    """cos and sin of `position * inv_freq`, the phase exact to 3e-7 at every position up to 2^31 - 1.

        cos[..., p, i] = attention_scale * cos(positions[..., p] * inv_freq[..., i]),   sin alike

    Args:
      schedule: without leading axes, or with exactly as many as `positions` has, each 1 or equal (a schedule per row,
        or per token).
      positions: [*batch, seq] integers in tokens, any width; a negative one turns the other way. With `pair_axes`,
        [axes, *batch, seq].
      phase: "exact", or "float32" for the rounded product that other libraries form (wrong by 0.03 radians at a
        million tokens, 0.3 at ten million).
      pair_axes: for each pair, which of the position streams turns it (m-RoPE).

    Returns:
      A float32 table, differentiable in the schedule to every order. Make it once per forward and hand it down.

    Raises:
      TypeError: positions that are not integers, a schedule that is not float32.
      ValueError: positions out of range, leading axes that do not fit, an unknown phase, pair axes that do not fit.

    Reference: Su et al., arXiv 2104.09864, eq. 34.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> rotary_table(geometric_schedule(64), jnp.arange(10)).cos.shape
      (10, 32)
    """
    if phase not in ("exact", "float32"):
        raise ValueError(f'`phase` must be "exact" or "float32"; got {phase!r}.')
    if not isinstance(schedule, FrequencySchedule):
        raise TypeError(
            f"`schedule` must be a FrequencySchedule; got {type(schedule).__name__}. Apply the transform to "
            "geometric_schedule(rotary_dim), or call spec.schedule()."
        )
    positions = check_positions(positions)
    if positions.ndim < 1 + (pair_axes is not None):
        raise ValueError(f"`positions` must have a seq axis; got shape {positions.shape}. Write positions[None].")
    positions = positions[..., None] if pair_axes is None else _of_pairs(positions, pair_axes, schedule.pairs)
    frequency, scale = _aligned(schedule, positions.shape[:-1])
    cos, sin = _cos_sin(phase, positions, frequency)
    return RotaryTable(cos * scale, sin * scale)


def _of_pairs(positions: Array, pair_axes: tuple[int, ...], pairs: int) -> Array:
    """Each pair's own position stream: [axes, *batch, seq] -> [*batch, seq, pairs]."""
    streams = positions.shape[0] if positions.ndim > 1 else 0
    whole = all(isinstance(axis, (int, np.integer)) and not isinstance(axis, bool) for axis in pair_axes)
    if len(pair_axes) != pairs or not whole or not all(0 <= axis < streams for axis in pair_axes):
        raise ValueError(
            f"`pair_axes` must name for each of the {pairs} pairs one of the leading {streams} position streams; got "
            f"{len(pair_axes)} entries {tuple(pair_axes)} for positions {positions.shape} [axes, *batch, seq]."
        )
    return jnp.stack([positions[axis] for axis in pair_axes], axis=-1)


def _aligned(schedule: FrequencySchedule, positions: tuple[int, ...]) -> tuple[_Frequency, Array]:
    """The schedule's arrays with the rank of the table, after the rules on dtypes and leading axes."""
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(schedule)}
    if dtypes != {"float32"}:
        # Casting a model's parameters must not reach its frequencies: bfloat16 ones are off by radians at 4096.
        raise TypeError(
            f"`schedule` must hold float32 arrays; got {', '.join(sorted(dtypes))}. Casts must leave it out."
        )
    stack, pairs = schedule.stack, schedule.pairs
    if not stack:
        stack = (1,) * len(positions)
    if len(stack) != len(positions) or not all(s in (1, n) for s, n in zip(stack, positions, strict=True)):
        raise ValueError(
            f"`schedule` must have no leading axes, or those of the positions {positions}, each 1 or equal; got "
            f"{schedule.stack}. Scan over layers, `vmap` over variants or heads; a schedule per row has axes "
            "[batch, 1]: RopeSpec.schedule(lengths) or length[:, None], with positions of as many rows."
        )
    frequency = _Frequency(schedule.inv_freq.reshape(*stack, pairs), schedule.residual.reshape(*stack, pairs, 2))
    return frequency, schedule.attention_scale.reshape(*stack, 1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cos_sin(phase: Phase, positions: Array, frequency: _Frequency) -> tuple[Array, Array]:
    """cos and sin of positions [*batch, seq, 1 or pairs] times frequencies [*batch or 1, pairs]."""
    if phase == "float32":
        radians = positions.astype(jnp.float32) * frequency.inv_freq
        return jnp.cos(radians), jnp.sin(radians)
    return _exact(positions, frequency)


@jax.jit
def _exact(positions: Array, frequency: _Frequency) -> tuple[Array, Array]:
    """Traced once however many tables a program makes."""
    high, low = turns_per_token(*frequency)
    # Fixed point has no NaN: a diverged frequency must not come out as a plausible angle.
    spoiled = jnp.where(jnp.isfinite(frequency.inv_freq), 0.0, jnp.nan).astype(jnp.float32)
    if positions.shape[-2] < _BLOCKS:
        return _of_turns(positions, high, low, spoiled)
    # XLA's CPU compiler would fuse the table into the rotation and compute it again for every row, head and unrolled
    # layer; a loop over blocks of positions is a boundary that it keeps. Other compilers get the plain form, which
    # shards.
    blocks = functools.partial(_in_blocks, _of_turns)
    return jax.lax.platform_dependent(positions, high, low, spoiled, cpu=blocks, default=_of_turns)


@_cos_sin.defjvp
def _(phase: Phase, primals: Any, tangents: Any) -> tuple[Any, Any]:
    # d cos(p w) = -sin(p w) p dw. The rule calls the table itself, so it can be differentiated again.
    positions, _ = primals
    cos, sin = _cos_sin(phase, *primals)
    turned = positions.astype(jnp.float32) * tangents[1].inv_freq
    return (cos, sin), (-sin * turned, cos * turned)


def _of_turns(positions: Array, high: Array, low: Array, spoiled: Array) -> tuple[Array, Array]:
    radians = angle(positions, high, low) + spoiled
    return jnp.cos(radians), jnp.sin(radians)


def _in_blocks(function: Callable[..., Any], *arrays: Array) -> Any:
    """`function` of arrays with a seq axis at -2, block by block of positions."""
    seq = max(array.shape[-2] for array in arrays)
    size = -(-seq // _BLOCKS)

    def blocked(array: Array) -> Array:
        if array.shape[-2] == 1:
            return jnp.broadcast_to(array, (_BLOCKS, *array.shape))
        padded = jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, size * _BLOCKS - seq), (0, 0)])
        return jnp.moveaxis(padded.reshape(*array.shape[:-2], _BLOCKS, size, array.shape[-1]), -3, 0)

    def joined(array: Array) -> Array:
        array = jnp.moveaxis(array, 0, -3)
        return array.reshape(*array.shape[:-3], size * _BLOCKS, array.shape[-1])[..., :seq, :]

    return jax.tree.map(joined, jax.lax.map(lambda block: function(*block), tuple(blocked(a) for a in arrays)))

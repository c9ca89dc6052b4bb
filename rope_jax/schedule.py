"""The frequency schedule: what RoPE turns by, as plain arrays.

A schedule is data, not configuration: it is an argument of the model, so one compiled program serves every scaling
method, and schedules stack, `vmap`, scan and go through an optimiser like any other parameters.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from rope_jax.float64 import constant, evaluate, split
from rope_jax.positions import is_traced


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class FrequencySchedule:
    """How fast every pair of channels turns, and what the rotated channels are multiplied by.

    Pair i of a token at position p turns by `p * (inv_freq_i + residual_i0 + residual_i1)` radians; cos and sin are
    then multiplied by `attention_scale`, so rotated logits grow by its square.

    Attributes:
      inv_freq: [*stack, pairs] float32, radians per token, fastest pair first; 0 does not turn (NoPE).
      residual: [*stack, pairs, 2] float32, what float32 leaves of the float64 frequency. Digits, not parameters:
        gradients flow through `inv_freq` alone.
      attention_scale: [*stack] float32.

    `stack` is any leading axes: variants, layers, heads, batch rows.
    """

    inv_freq: Float32[Array, "*stack pairs"]
    residual: Float32[Array, "*stack pairs 2"]
    attention_scale: Float32[Array, "*stack"]

    @classmethod
    def of(cls, inv_freq: Any, attention_scale: Any = 1.0) -> "FrequencySchedule":
        """A schedule from frequencies of your own: NumPy float64 keeps all its digits, traced arrays are float32.

        Args:
          inv_freq: [*stack, pairs], radians per token.
          attention_scale: number or [*stack], above 0.

        Raises:
          TypeError, ValueError: what is not numbers, not finite, or of another shape.

        Example:
          >>> FrequencySchedule.of([1.0, 0.1]).pairs
          2
        """
        if is_traced(inv_freq) or is_traced(attention_scale):
            first = jnp.asarray(inv_freq).astype(jnp.float32)
            traced_scale = jnp.broadcast_to(jnp.asarray(attention_scale).astype(jnp.float32), first.shape[:-1])
            return cls(first, jnp.zeros((*first.shape, 2), jnp.float32), traced_scale)
        given, scale = np.asarray(inv_freq), np.asarray(attention_scale)
        for argument, value in (("inv_freq", given), ("attention_scale", scale)):
            if value.dtype.kind not in "iuf":
                raise TypeError(f"`{argument}` must be numbers; got dtype {value.dtype}.")
        exact = given.astype(np.float64)
        if exact.ndim == 0 or exact.shape[-1] == 0 or not np.all(np.abs(exact) < 2.0**32):
            raise ValueError(
                f"`inv_freq` must be finite frequencies [*stack, pairs]; got {inv_freq!r}. Give radians per token."
            )
        if not (np.all(np.isfinite(scale)) and np.all(scale > 0)):
            raise ValueError(f"`attention_scale` must be above 0; got {attention_scale!r}. 1 leaves logits alone.")
        if scale.ndim and scale.shape != exact.shape[:-1]:
            raise ValueError(f"`attention_scale` must be a number or {exact.shape[:-1]}; got shape {scale.shape}.")
        first_plane, residual = split(np, exact)
        scales = np.broadcast_to(scale.astype(np.float32), exact.shape[:-1])
        return cls(constant(first_plane), constant(residual), constant(scales))

    @property
    def pairs(self) -> int:
        """Pairs of channels that turn: half the rotary width."""
        return self.inv_freq.shape[-1]

    @property
    def stack(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.inv_freq.shape[:-1]

    def replace(self, **changes: Array) -> "FrequencySchedule":
        """A copy with fields changed; new `inv_freq` without new `residual` starts with none."""
        if "inv_freq" in changes and "residual" not in changes:
            changes["residual"] = jnp.zeros((*changes["inv_freq"].shape, 2), jnp.float32)
        fields = {"inv_freq": self.inv_freq, "residual": self.residual, "attention_scale": self.attention_scale}
        unknown = sorted(set(changes) - set(fields))
        if unknown:
            raise TypeError(f"`replace` must name fields of FrequencySchedule {sorted(fields)}; got {unknown}.")
        return FrequencySchedule(**(fields | changes))

    def float64(self) -> np.ndarray:
        """The frequencies with all their digits: host float64, [*stack, pairs]."""
        residual = np.asarray(self.residual, np.float64)
        return np.asarray(self.inv_freq, np.float64) + residual[..., 0] + residual[..., 1]

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], None]:
        """The leaves with their names, for jax."""
        key = jax.tree_util.GetAttrKey
        names = ("inv_freq", "residual", "attention_scale")
        return tuple((key(name), getattr(self, name)) for name in names), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> "FrequencySchedule":
        """A schedule from leaves that may be placeholders, hence without the constructor's checks."""
        schedule = object.__new__(cls)
        for name, leaf in zip(("inv_freq", "residual", "attention_scale"), leaves, strict=True):
            object.__setattr__(schedule, name, leaf)
        return schedule


def geometric_schedule(rotary_dim: int, *, theta: Any = 10_000.0) -> FrequencySchedule:
    """Plain RoPE: frequencies that fall geometrically from one radian per token.

        inv_freq_i = theta^(-2 i / rotary_dim),   i = 0 .. rotary_dim / 2 - 1

    Args:
      rotary_dim: channels of a head that turn; even, at least 2.
      theta: the base, a number above 1 (or an array, then unchecked and differentiable).

    Returns:
      A schedule of `rotary_dim / 2` pairs, attention scale 1, exact to float64.

    Raises:
      TypeError, ValueError: the width is not an even positive integer, or theta is not a finite number above 1.

    Reference: Su et al., arXiv 2104.09864, eq. 15.

    Example:
      >>> geometric_schedule(4, theta=100.0).inv_freq.tolist()
      [1.0, 0.10000000149011612]
    """
    check_rotary_dim(rotary_dim)
    if not isinstance(theta, (jax.Array, np.ndarray)):
        theta = check_theta(theta)

    def formula(xp: Any, base: Any) -> tuple[Any, Any]:
        base = xp.asarray(base)
        exponent = xp.asarray(-2.0 * np.arange(rotary_dim // 2) / rotary_dim).astype(base.dtype)
        return base**exponent, xp.ones((1,), base.dtype)

    return FrequencySchedule(*evaluate(formula, theta))


def rotary_width(head_dim: int, fraction: float) -> int:
    """The rotary width of partial rotary: `fraction * head_dim`, which must be an even integer.

    Args:
      head_dim: channels of a head.
      fraction: share of them that turns, above 0 and at most 1.

    Raises:
      ValueError: the product is not within 1e-6 of an even integer of at least 2. Nothing is rounded down.

    Reference: Black et al. (GPT-NeoX-20B), arXiv 2204.06745.

    Example:
      >>> rotary_width(128, 0.75)
      96
    """
    if isinstance(head_dim, bool) or not isinstance(head_dim, (int, np.integer)) or head_dim < 2:
        raise ValueError(f"`head_dim` must be an integer of at least 2; got {head_dim!r}.")
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
        raise ValueError(f"`fraction` must be above 0 and at most 1; got {fraction!r}.")
    width = fraction * head_dim
    if abs(width - 2 * round(width / 2)) > 1e-6 or round(width) < 2:
        raise ValueError(
            f"`fraction` x `head_dim` must be an even integer of at least 2; got {fraction} x {head_dim} = {width:g}. "
            "Choose a fraction that gives whole pairs."
        )
    return round(width)


def check_rotary_dim(rotary_dim: object) -> None:
    """Refuse a rotary width that is not a whole number of pairs."""
    if isinstance(rotary_dim, bool) or not isinstance(rotary_dim, (int, np.integer)):
        raise TypeError(f"`rotary_dim` must be an integer; got {rotary_dim!r}.")
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(
            f"`rotary_dim` must be even and at least 2, since channels turn in pairs; got {rotary_dim}. "
            "Rotate fewer channels: the rest of the head passes through."
        )


def check_theta(theta: Any) -> float:
    """The base as a Python float, refused unless it is finite and above 1."""
    if isinstance(theta, (bool, np.bool_)) or not isinstance(theta, (int, float, np.number)):
        raise TypeError(f"`theta` must be a number; got {theta!r}.")
    if not (math.isfinite(theta) and theta > 1):
        raise ValueError(
            f"`theta` must be a finite number above 1; got {theta!r}. 10000 is RoFormer's, 500000 Llama 3's."
        )
    return float(theta)

"""The one type of every scaling method: a pure map from schedule to schedule, and its composition.

A method is a frozen dataclass of its published parameters with one function, `edit`, that is its equation. Fields may
be Python numbers (then checked, compared and hashed) or arrays and tracers (then neither), so the same class works
under `jit`, `grad` and `vmap`.
"""

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from rope_jax.float64 import evaluate
from rope_jax.scaling.checks import check_length
from rope_jax.schedule import FrequencySchedule

# A Python number (checked, compared, hashed), or an array or tracer (none of these).
Number = Any
Edited = tuple[Any, Any]


class FrequencyTransform(ABC):
    """A scaling method: `transform(schedule, length=...)` gives a new schedule.

    To add one, write a frozen keyword-only dataclass with `check` (rules on Python numbers) and `edit` (the equation),
    and add it to `rope_jax.scaling.METHODS`; the laws of the test table then run over it.

    Attributes:
      needs_length: whether the schedule depends on the length of the sequence at hand.
    """

    needs_length: ClassVar[bool] = False

    @abstractmethod
    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """The method's equation in float64.

        Args:
          xp: `numpy` on the host, `jax.numpy` for traced operands.
          inv_freq: [*stack, pairs], radians per token.
          attention_scale: [*stack, 1].
          length: tokens in the sequence, a number or [*stack, 1]; None for methods that do not need it.
        """

    def check(self) -> None:  # noqa: B027 (a method without parameters has no rules)
        """Raise unless the fields that are Python numbers obey the method's rules."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        self.check()

    def __call__(self, schedule: FrequencySchedule, *, length: Any = None) -> FrequencySchedule:
        """The edited schedule; see the class for what changes.

        Args:
          schedule: any leading axes.
          length: tokens in the sequence: a Python number, or an array or tracer of any shape, whose axes then lead the
            result's (they broadcast with the schedule's own). Only methods with `needs_length` read it.

        Raises:
          ValueError: `length` is missing though the method needs it, or is not at least 1.
        """
        if not isinstance(schedule, FrequencySchedule):
            raise TypeError(
                f"`schedule` must be a FrequencySchedule; got {type(schedule).__name__}. "
                "Start from geometric_schedule(rotary_dim)."
            )
        if length is not None:
            check_length(length)
        if not self.needs_length:
            length = None
        elif length is None:
            raise ValueError(
                f"`length` must be given to {type(self).__name__}, whose frequencies depend on it; got None. "
                "Pass the tokens in the sequence, or RopeSpec.schedule(rope_jax.lengths(positions)) for one per row."
            )
        rank = max(len(schedule.stack), np.ndim(length) if length is not None else 0)
        operands = (_arrays(self), schedule, length)

        def formula(xp: Any, values: Any) -> Edited:
            fields, known, tokens = values
            digits = known.residual if xp is np else jax.lax.stop_gradient(known.residual)
            inv_freq = _leading(known.inv_freq + digits[..., 0] + digits[..., 1], rank + 1)
            scale = _leading(known.attention_scale[..., None], rank + 1)
            if tokens is not None and np.ndim(tokens):
                tokens = _leading(tokens[..., None], rank + 1)
            return _with(self, fields).edit(xp, inv_freq, scale, tokens)

        return FrequencySchedule(*evaluate(formula, operands))


@dataclass(frozen=True, kw_only=True)
class Identity(FrequencyTransform):
    """Plain RoPE: the schedule as it is.

    Example:
      >>> chain() == Identity()
      True
    """

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """Nothing changes."""
        return inv_freq, attention_scale


@dataclass(frozen=True, kw_only=True)
class Chain(FrequencyTransform):
    """Several transforms, the first one applied first; made by `chain`."""

    transforms: tuple[FrequencyTransform, ...]

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        """Whether any of the transforms does."""
        return any(transform.needs_length for transform in self.transforms)

    def edit(self, xp: Any, inv_freq: Any, attention_scale: Any, length: Any) -> Edited:
        """Each equation in turn, without rounding in between."""
        for transform in self.transforms:
            inv_freq, attention_scale = transform.edit(xp, inv_freq, attention_scale, length)
        return inv_freq, attention_scale


def chain(*transforms: FrequencyTransform) -> FrequencyTransform:
    """Compose transforms, the first one applied first: `chain(f, g)(s) = g(f(s))`.

    Associative, with `Identity()` = `chain()` as its unit; nested chains are flattened, so equal chains compare equal.

    Raises:
      TypeError: something that is not a transform.

    Example:
      >>> from rope_jax import PositionInterpolation, Resonance
      >>> chain(PositionInterpolation(factor=4.0), Resonance()).transforms[0].factor
      4.0
    """
    flat: list[FrequencyTransform] = []
    for transform in transforms:
        if not isinstance(transform, FrequencyTransform):
            raise TypeError(f"`transforms` must be FrequencyTransform values; got {transform!r}.")
        flat.extend(transform.transforms if isinstance(transform, Chain) else [transform])
    flat = [transform for transform in flat if transform != Identity()]
    if len(flat) < 2:
        return flat[0] if flat else Identity()
    return Chain(transforms=tuple(flat))


def turns(xp: Any, inv_freq: Any, original_length: Any) -> Any:
    """How often each pair turns within the trained length: `rho_i = L inv_freq_i / 2 pi`."""
    return original_length * inv_freq / (2 * math.pi)


def blend(inv_freq: Any, kept: Any, factor: Any) -> Any:
    """Mix the plain and the interpolated frequency: `kept inv_freq + (1 - kept) inv_freq / factor`.

    Written as one multiplier, which is exactly 1 at factor 1 and costs one rounding of the frequency.
    """
    return inv_freq * (kept + (1 - kept) / factor)


def pair_index(xp: Any, inv_freq: Any) -> Any:
    """0, 1, ..., pairs - 1 with the rank and dtype of `inv_freq`."""
    index = np.arange(inv_freq.shape[-1]).reshape((1,) * (inv_freq.ndim - 1) + (-1,))
    return xp.asarray(index).astype(inv_freq.dtype)


def per_pair(xp: Any, values: Any, inv_freq: Any, argument: str) -> Any:
    """A list with one entry per pair, with the rank and dtype of `inv_freq`."""
    values = xp.asarray(values)
    pairs = inv_freq.shape[-1]
    if values.ndim < 1 or values.shape[-1] != pairs:
        raise ValueError(
            f"`{argument}` must have one entry per rotary pair, {pairs} for rotary_dim {2 * pairs}; got "
            f"{values.shape[-1] if values.ndim else 'a number'}. Lists follow the rotary width, not the head's."
        )
    return values.reshape((1,) * (inv_freq.ndim - values.ndim) + values.shape).astype(inv_freq.dtype)


def log_theta(xp: Any, inv_freq: Any, method: str) -> Any:
    """ln of the base, from the slope of ln inv_freq: [*stack, 1].

    Raises:
      ValueError: one pair only, or known frequencies that do not fall geometrically.
    """
    pairs = inv_freq.shape[-1]
    if pairs < 2:
        raise ValueError(f"{method} must be given at least 2 pairs, since it bends the spectrum; got {pairs}.")
    if xp is np:
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.diff(np.log(inv_freq), axis=-1)
        if not (np.all(steps < 0) and np.allclose(steps, steps[..., :1], rtol=1e-5, atol=1e-7)):
            raise ValueError(
                f"{method} must be given a geometric schedule, since it is defined on the base theta; got frequencies "
                f"{inv_freq.reshape(-1, pairs)[0, :4]}... Apply it first in the chain."
            )
    return (xp.log(inv_freq[..., :1]) - xp.log(inv_freq[..., -1:])) * (pairs / (pairs - 1))


def _plain(value: Any) -> Any:
    """Lists and NumPy arrays become tuples and NumPy scalars Python numbers.

    So equal parameters compare and hash alike, and an array edited later by its owner changes nothing here.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(_plain(entry) for entry in value)
    return value.item() if isinstance(value, np.generic) else value


def _arrays(transform: FrequencyTransform) -> Any:
    """The parameters that are arrays, as a tree that `evaluate` can convert."""
    if isinstance(transform, Chain):
        return tuple(_arrays(part) for part in transform.transforms)
    names = [field.name for field in dataclasses.fields(transform)]  # type: ignore[arg-type]
    values = {name: getattr(transform, name) for name in names}
    return {name: v for name, v in values.items() if isinstance(v, (jax.Array, np.ndarray))}


def _with(transform: FrequencyTransform, arrays: Any) -> FrequencyTransform:
    """The transform with its array parameters in the precision of the formula."""
    changed = copy.copy(transform)
    if isinstance(transform, Chain):
        parts = tuple(_with(part, own) for part, own in zip(transform.transforms, arrays, strict=True))
        arrays = {"transforms": parts}
    for name, value in arrays.items():
        object.__setattr__(changed, name, value)
    return changed


def _leading(array: Float[Array, "..."] | Any, rank: int) -> Any:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)

"""Rules on the parameters of methods, checked where they are Python numbers; arrays and tracers pass."""

import math
from typing import Any

import jax
import numpy as np

from rope_jax.positions import is_traced


def check_length(length: Any) -> None:
    """Refuse a known length that is not a number of tokens of at least 1 (0 is allowed in arrays: an empty row)."""
    if is_traced(length):
        return
    numbers = (int, float, np.number, np.ndarray, jax.Array)
    if isinstance(length, bool) or not isinstance(length, numbers) or np.asarray(length).dtype.kind not in "iuf":
        raise TypeError(f"`length` must be a number of tokens or an array of them; got {length!r}.")
    known = np.asarray(length)
    least = 0 if known.ndim else 1
    if not (np.all(np.isfinite(known)) and np.all(known >= least)):
        raise ValueError(f"`length` must be at least {least} token{'s' * (not least)}; got {length!r}.")


def check_number(argument: str, value: Any, rule: str, holds: Any, cure: str = "") -> None:
    """Raise unless `value` is an array, or a finite Python number for which `holds(value)`."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"`{argument}` must be a number; got {value!r}. {cure}".rstrip())
    if not (math.isfinite(value) and holds(value)):
        raise ValueError(f"`{argument}` must be {rule}; got {value!r}. {cure}".rstrip())


def check_factor(value: Any, argument: str = "factor") -> None:
    """A factor is target length / trained length: at least 1."""
    check_number(argument, value, "at least 1", lambda v: v >= 1, "It is target length / trained length.")


def check_original_length(value: Any) -> None:
    """The trained length: at least 1 token."""
    check_number(
        "original_length", value, "at least 1", lambda v: v >= 1, "It is the number of tokens the model was trained on."
    )


def check_scale(value: Any, argument: str = "attention_scale") -> None:
    """A multiplier of cos and sin: above 0."""
    check_number(argument, value, "above 0", lambda v: v > 0, "Leave it out to let the method's formula decide.")


def check_entries(argument: str, values: Any) -> None:
    """A list of positive finite numbers (arrays are not checked)."""
    if isinstance(values, (jax.Array, np.ndarray)):
        return
    if not isinstance(values, tuple) or not values:
        raise TypeError(f"`{argument}` must be a list with one number per rotary pair; got {values!r}.")
    for index, value in enumerate(values):
        check_number(f"{argument}[{index}]", value, "above 0", lambda v: v > 0)

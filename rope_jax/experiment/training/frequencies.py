"""Frequencies that are trained: the logarithm of inv_freq, a part of the training state."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from rope_jax.schedule import FrequencySchedule

Learned = dict[str, Array]
Schedules = Mapping[str, FrequencySchedule | None] | None

_STILL = -69.0
"""The logarithm of a frequency that does not turn: 1e-30, whose gradient is nothing at any position."""


def logarithms(schedules: Schedules) -> dict[str, Float32[Array, "pairs"]]:
    """What is trained of the schedules: log inv_freq of every layer group that turns.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> found = logarithms({"all": geometric_schedule(4, theta=100.0), "L": None})
      >>> [round(float(number), 3) for number in found["all"]]
      [0.0, -2.303]
    """
    turning = {group: schedule.float64() for group, schedule in (schedules or {}).items() if schedule is not None}
    return {
        group: jnp.asarray(np.log(np.where(exact > 0, exact, np.exp(_STILL))).astype(np.float32))
        for group, exact in turning.items()
    }


def turned_by(schedules: Any, learned: Learned | None) -> Any:
    """The schedules with the trained frequencies in place of their own; attention scales stay.

    Without `learned`, the schedules themselves.
    """
    if learned is None:
        return schedules
    return {
        group: schedule if schedule is None else schedule.replace(inv_freq=jnp.exp(learned[group]))
        for group, schedule in schedules.items()
    }

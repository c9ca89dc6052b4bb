"""Which schedule every row has at every new token, and where it changes: known before the first one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rope_jax.nn.schedules import ScheduleLike
from rope_jax.positions import LARGEST_POSITION
from rope_jax.schedule import FrequencySchedule

Rule = Callable[[Any], ScheduleLike]


@dataclass(frozen=True, eq=False)
class Timeline:
    """The schedules of a request, token by token.

    Attributes:
      schedules: with leading axes [batch, columns], or none: those serve every length as they are.
      column: [steps], where in `schedules` each new token finds its own; None: nothing has these axes.
      changed: [batch, steps], whether a row's schedule differs from that of the token before.
    """

    schedules: ScheduleLike
    column: np.ndarray | None
    changed: np.ndarray

    def at(self, step: int) -> ScheduleLike:
        """The schedules [batch, 1, ...] under which new token number `step` is chosen."""
        if self.column is None:
            return self.schedules
        here = slice(int(self.column[step]), int(self.column[step]) + 1)

        def cut(schedule: FrequencySchedule | None) -> FrequencySchedule | None:
            if schedule is None or not schedule.stack:
                return schedule
            part: FrequencySchedule = jax.tree.map(lambda leaf: leaf[:, here], schedule)
            return part

        if isinstance(self.schedules, Mapping):
            return {group: cut(schedule) for group, schedule in self.schedules.items()}
        return cut(self.schedules)

    def next_change(self, step: int, rows: np.ndarray) -> int:
        """The first new token after `step` for which the schedule of one of `rows` [batch] changes, or the end."""
        later = np.flatnonzero(self.changed[rows, step + 1 :].any(axis=0))
        return step + 1 + int(later[0]) if later.size else self.changed.shape[1]


def timeline(rule: Rule | ScheduleLike, lengths: np.ndarray, *, reserve: int, steps: int, keep: bool) -> Timeline:
    """The timeline of rows that are `lengths` [batch] long before the first of `steps` new tokens.

        length of row r at new token t = max(lengths_r + reserve, lengths_r + t)

    With `keep` it stays what it is at the first. Schedules are compared by their numbers, so a method that only
    starts to stretch, or switches, at some length changes there and nowhere else.
    """
    never = np.zeros((lengths.shape[0], steps), np.bool_)
    if not callable(rule):
        return Timeline(_plain(rule), None, never)
    furthest = int(lengths.max()) + max(reserve, steps - 1)
    if furthest > LARGEST_POSITION:
        raise ValueError(
            f"`reserve` must keep the length of a request within 2^31 - 1; got {reserve} for a length of "
            f"{int(lengths.max())}. Positions end there."
        )
    grown = np.maximum(np.arange(steps), reserve) if not keep else np.full(steps, reserve)
    distinct, column = np.unique(grown, return_inverse=True)
    schedules = _plain(rule((lengths[:, None] + distinct[None, :]).astype(np.int32)))
    shape = (lengths.shape[0], distinct.shape[0])
    stacks = {schedule.stack for schedule in _named(schedules) if schedule is not None}
    if stacks <= {()}:
        return Timeline(schedules, None, never)
    if not stacks <= {(), shape}:
        raise ValueError(
            f"`schedule` must give a schedule for every length it is asked for, with leading axes {shape}, or one "
            f"without; got {sorted(stacks)}. RopeSpec.schedule does."
        )
    differs = np.zeros(shape, np.bool_)
    for schedule in _named(schedules):
        for leaf in jax.tree.leaves(schedule) if schedule is not None and schedule.stack else ():
            host = np.asarray(leaf).reshape(*shape, -1)
            differs[:, 1:] |= np.any(host[:, 1:] != host[:, :-1], axis=2)
    fresh = np.diff(column, prepend=column[0]) != 0
    return Timeline(schedules, column, differs[:, column] & fresh[None, :])


def _plain(schedules: ScheduleLike) -> ScheduleLike:
    """Mappings as dicts, the ones that tree transformations look into."""
    return dict(schedules) if isinstance(schedules, Mapping) else schedules


def _named(schedules: ScheduleLike) -> tuple[FrequencySchedule | None, ...]:
    return tuple(schedules.values()) if isinstance(schedules, Mapping) else (schedules,)

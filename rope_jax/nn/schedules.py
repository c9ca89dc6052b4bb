"""Which schedule turns which layer: groups of layers, each with a schedule of its own or none."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rope_jax.schedule import FrequencySchedule
from rope_jax.table import RotaryTable, rotary_table

GroupSchedules = dict[str, FrequencySchedule | None]
ScheduleLike = FrequencySchedule | Mapping[str, FrequencySchedule | None] | None
MIXED = (
    "`schedule` must be the one that the keys in the cache were rotated by; got another. "
    "Call rerotate, prefill again, or store unrotated keys."
)


def by_group(schedule: ScheduleLike, groups: tuple[str, ...], head_dim: int) -> GroupSchedules | None:
    """The schedule of every layer group; None when no group turns.

    Args:
      schedule: one for all groups, or a dict that names every group (None: the group does not turn), or None.
      groups: the groups of the model.
      head_dim: channels of a head, which the rotary width must not exceed.

    Raises:
      TypeError: a value that is no schedule.
      ValueError: unknown or missing groups, rotary widths that differ or exceed the head.
    """
    named = schedule if isinstance(schedule, Mapping) else dict.fromkeys(groups, schedule)
    if set(named) != set(groups):
        unknown, missing = sorted(set(named) - set(groups)), sorted(set(groups) - set(named))
        raise ValueError(
            f"`schedule` must name the layer groups {groups}; got unknown {unknown} and missing {missing}. "
            "Write None for a group that does not turn."
        )
    for group, value in named.items():
        if value is not None and not isinstance(value, FrequencySchedule):
            raise TypeError(
                f"`schedule` must hold FrequencySchedule or None; got {type(value).__name__} for {group!r}. "
                "A spec makes one: RopeSpec.schedule()."
            )
    widths = {group: 2 * value.pairs for group, value in named.items() if value is not None}
    if len(set(widths.values())) > 1:
        raise ValueError(
            f"`schedule` must have one rotary width in all groups, since one layer scan serves them; got {widths}. "
            "Pairs with frequency 0 pass through: Proportional keeps the width."
        )
    if any(width > head_dim for width in widths.values()):
        raise ValueError(
            f"`schedule` must turn at most the head width {head_dim}; got rotary width {max(widths.values())}. "
            "Build it with rotary_dim <= head_dim."
        )
    return {group: named[group] for group in groups} if widths else None


def head_table(
    schedule: FrequencySchedule,
    positions: Int[Array, "*batch seq"],
    kv_heads: int,
    pair_axes: tuple[int, ...] | None = None,
) -> RotaryTable:
    """The rotary table of a schedule that may have an axis of kv heads in front of those of the positions.

    With `pair_axes` the positions are streams [axes, *batch, seq]. A lone leading axis of the schedule is refused:
    whether it means heads, rows or layers cannot be told from its size.
    """
    token_axes = positions.ndim - (pair_axes is not None)
    axes = len(schedule.stack) - token_axes
    if axes not in (-token_axes, 0, 1) or (axes == 1 and schedule.stack[0] != kv_heads):
        raise ValueError(
            f"`schedule` must have no leading axes, those of the positions {positions.shape[-token_axes:]}, each 1 or "
            f"equal, or {kv_heads} kv heads and then those; got {schedule.stack}. Per row: RopeSpec.schedule(lengths) "
            "or length[:, None]; per head: [kv_heads, 1, 1]; layers that differ: a group each, through `pattern`."
        )
    rows = schedule.stack[axes] if schedule.stack else 1
    if positions.shape[-2] == 1 < rows:
        positions = jnp.broadcast_to(positions, (*positions.shape[:-2], rows, positions.shape[-1]))
    made = partial(rotary_table, positions=positions, pair_axes=pair_axes)
    table: RotaryTable = jax.vmap(made, out_axes=-2)(schedule) if axes == 1 else made(schedule)
    return table


def group_tables(
    schedules: GroupSchedules,
    positions: Int[Array, "*axes rows seq"],
    kv_heads: int,
    pair_axes: tuple[int, ...] | None = None,
) -> tuple[RotaryTable, ...]:
    """The table of every group, all of one shape; a group that does not turn has cos 1 and sin 0."""
    made = [
        None if schedule is None else head_table(schedule, positions, kv_heads, pair_axes)
        for schedule in schedules.values()
    ]
    per_head = any(table is not None and table.cos.ndim == 4 for table in made)
    pairs = next(table.cos.shape[-1] for table in made if table is not None)
    rows = max(table.cos.shape[0] for table in made if table is not None)
    heads = (kv_heads,) if per_head else ()
    shape = (rows, positions.shape[-1], *heads, pairs)

    def full(table: RotaryTable | None) -> RotaryTable:
        if table is None:
            return RotaryTable(jnp.ones(shape, jnp.float32), jnp.zeros(shape, jnp.float32))
        if per_head and table.cos.ndim == 3:
            table = _for_heads(table)
        return RotaryTable(jnp.broadcast_to(table.cos, shape), jnp.broadcast_to(table.sin, shape))

    return tuple(full(table) for table in made)


def _for_heads(table: RotaryTable) -> RotaryTable:
    return RotaryTable(table.cos[:, :, None, :], table.sin[:, :, None, :])


def changes(
    old: GroupSchedules, new: GroupSchedules, positions: Int[Array, "rows seq"], kv_heads: int
) -> tuple[RotaryTable, ...]:
    """For every group, the table that turns keys from one schedule to another: e^(ip(w_new - w_old)) a_new / a_old.

    Formed from the exact phases of both, so one rotation and one rounding take the keys across.
    """

    def change(before: RotaryTable, after: RotaryTable) -> RotaryTable:
        if before.cos.ndim != after.cos.ndim:
            before, after = (table if table.cos.ndim == 4 else _for_heads(table) for table in (before, after))
        if before.cos.shape[-1] != after.cos.shape[-1]:
            raise ValueError(
                f"`schedule` must keep the rotary width; got {2 * after.cos.shape[-1]} for keys rotated on "
                f"{2 * before.cos.shape[-1]} channels. Prefill again."
            )
        square = before.cos * before.cos + before.sin * before.sin
        cos = (after.cos * before.cos + after.sin * before.sin) / square
        return RotaryTable(cos, (after.sin * before.cos - after.cos * before.sin) / square)

    tables = (group_tables(schedules, positions, kv_heads) for schedules in (old, new))
    return tuple(change(before, after) for before, after in zip(*tables, strict=True))


def stacked(tables: tuple[RotaryTable, ...]) -> RotaryTable:
    """Tables of one shape with a leading axis, to be indexed by layer."""
    return RotaryTable(jnp.stack([table.cos for table in tables]), jnp.stack([table.sin for table in tables]))


def alike(one: GroupSchedules | None, other: GroupSchedules | None) -> bool:
    """Whether two records turn the same groups and have arrays of the same shapes, whatever the numbers."""
    structures: list[Any] = [jax.tree.structure(record) for record in (one, other)]
    shapes = [[leaf.shape for leaf in jax.tree.leaves(record)] for record in (one, other)]
    return bool(structures[0] == structures[1]) and shapes[0] == shapes[1]


def same(one: GroupSchedules | None, other: GroupSchedules | None) -> Array:
    """Whether two records that are alike hold the same numbers."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return jnp.all(jnp.stack([jnp.array_equal(a, b) for a, b in pairs]))


def recorded(
    given: GroupSchedules | None, known: GroupSchedules | None, used: Array
) -> tuple[GroupSchedules | None, Array]:
    """The schedule that a cache remembers once `given` is stated, and whether the keys already there turned by it.

    Raises:
      ValueError: other groups or shapes than those that are known.
    """
    if known is None:
        return given, jnp.ones((), jnp.bool_) if given is None else used == 0
    if not alike(given, known):
        raise ValueError(MIXED)
    return given, same(given, known)

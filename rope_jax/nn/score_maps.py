"""Score maps in a stack of layers: which layer groups have one, and the regions of every group."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rope_jax.attention import Region, ScoreMap
from rope_jax.attention.score_maps.base import Placement, slowed
from rope_jax.attention.score_maps.origin import from_start
from rope_jax.nn.config import DecoderConfig
from rope_jax.nn.hybrid import AnyCache
from rope_jax.nn.schedules import GroupSchedules, group_tables
from rope_jax.positions import LARGEST_POSITION

ScoreMapLike = ScoreMap | Mapping[str, ScoreMap | None] | None
GroupRegions = tuple[tuple[Region, ...], ...]


class Mapped(NamedTuple):
    """A score map, the schedule of every layer group, and whether the group has the map or its plain scores."""

    score_map: ScoreMap
    schedules: GroupSchedules
    groups: tuple[bool, ...]


def mapped_groups(
    score_map: ScoreMapLike, schedules: GroupSchedules | None, config: DecoderConfig, cache: AnyCache | None
) -> Mapped | None:
    """Which groups have the score map; None when none does.

    A group without a schedule, or whose sliding window ends before the map changes a distance, stays plain.

    Raises:
      TypeError: what is no score map.
      ValueError: unknown or missing groups, two maps that differ, no schedule, a cache of rotated keys or a ring.
    """
    if score_map is None:
        return None
    named = score_map if isinstance(score_map, Mapping) else dict.fromkeys(config.groups, score_map)
    if set(named) != set(config.groups):
        raise ValueError(
            f"`score_map` must name the layer groups {config.groups}; got {tuple(named)}. "
            "Write None for a group that keeps its plain scores."
        )
    given = [value for value in named.values() if value is not None]
    for value in given:
        if not isinstance(value, ScoreMap):
            raise TypeError(f"`score_map` must be a ScoreMap or None; got {type(value).__name__}. SelfExtend is one.")
        if value != given[0]:
            raise ValueError(
                f"`score_map` must be one map, since one layer scan serves all groups; got {given[0]} and {value}. "
                "Give the other groups None."
            )
    if schedules is None:
        raise ValueError("`schedule` must be given with `score_map`; got None, so nothing would turn. Pass one.")
    windows = dict(zip(config.groups, config.group_windows, strict=True))
    groups = tuple(
        named[group] is not None and schedules[group] is not None and not _inside(windows[group], given[0])
        for group in config.groups
    )
    if not any(groups):
        return None
    _check_cache(cache)
    return Mapped(given[0], schedules, groups)


def _inside(window: int | None, score_map: ScoreMap) -> bool:
    return window is not None and window <= score_map.plain_below


def _check_cache(cache: AnyCache | None) -> None:
    if cache is not None and cache.keys != "unrotated":
        raise ValueError(
            "`cache` must hold unrotated keys for a `score_map`, whose regions turn them differently; got rotated "
            'ones. Make it with keys="unrotated".'
        )
    if cache is not None and cache.window is not None:
        raise ValueError(
            f"`cache` must keep the start of the document for a `score_map`, which counts from there; got a ring for "
            f"window {cache.window}. Make it with KVCache.empty, without a window, and room for all tokens."
        )


def group_regions(mapped: Mapped, mask: Mapping[str, Any], config: DecoderConfig) -> GroupRegions:
    """The regions of every group, as many and of the same shapes in each, so that a layer scan can index them.

    A group that stays plain has all its pairs in the first region and none in the others.
    """
    segments = mask["segments"]
    q, kv = from_start(mask["q_positions"], mask["kv_positions"], segments, segments)
    places = mapped.score_map.placements(q, kv)
    first, *others = places
    unbounded = first._replace(q_positions=q, kv_positions=kv, high=None, slowdown=1.0)
    plain = (unbounded, *(unbounded._replace(q_key=o.q_key, kv_key=o.kv_key, high=0) for o in others))
    # Tables that no group reads are not computed.
    ways = tuple(tuple(_for_groups(place, mapped.schedules, config) for place in way) for way in (plain, places))
    return tuple(tuple(regions[group] for regions in ways[has_map]) for group, has_map in enumerate(mapped.groups))


def _for_groups(place: Placement, schedules: GroupSchedules, config: DecoderConfig) -> tuple[Region, ...]:
    """One region as each group turns it."""
    turning = {g: None if schedule is None else slowed(schedule, place.slowdown) for g, schedule in schedules.items()}
    kv_heads = config.attention.kv_count
    q_tables, kv_tables = (group_tables(turning, side, kv_heads) for side in (place.q_positions, place.kv_positions))
    return tuple(
        Region(
            q_table=q_table,
            kv_table=kv_table,
            q_key=place.q_key,
            kv_key=place.kv_key,
            low=place.low,
            high=place.high,
            layout=config.layout,
        )
        for q_table, kv_table in zip(q_tables, kv_tables, strict=True)
    )


def region_picker(regions: GroupRegions | None) -> Callable[[Array], tuple[Region, ...] | None]:
    """The regions of a group that is known only inside the layer scan."""
    if regions is None:
        return lambda group: None
    if len(regions) == 1:
        return lambda group: regions[0]
    bounded = [[_bounded(region) for region in parts] for parts in regions]
    together = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike) for alike in zip(*bounded, strict=True)]
    return lambda group: tuple(jax.tree.map(lambda leaf: leaf[group], region) for region in together)


def _bounded(region: Region) -> Region:
    """Bounds as arrays: 2^31 - 1 is further than any key reaches."""
    high = LARGEST_POSITION if region.high is None else region.high
    return replace(region, low=jnp.int32(region.low), high=jnp.int32(high))

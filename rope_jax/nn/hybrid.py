"""A cache for layers that keep different numbers of tokens: a ring for those with a window, all for the others."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from rope_jax.nn.cache import Keys, KVCache
from rope_jax.nn.checks import check_count
from rope_jax.nn.config import DecoderConfig
from rope_jax.nn.schedules import GroupSchedules, ScheduleLike, by_group
from rope_jax.nn.slots import Places, Slots, Store


@partial(jax.tree_util.register_dataclass, data_fields=["parts"], meta_fields=["layer_groups"])
@dataclass(frozen=True, eq=False)
class HybridCache:
    """Two caches that advance together: tokens are in both or in neither.

    Attributes:
      parts: the ring of the layers with a window, and the cache of the others, each for its own layer groups.
      layer_groups: the group of every layer.
    """

    parts: tuple[KVCache, ...]
    layer_groups: tuple[str, ...]

    @property
    def keys(self) -> Keys:
        """As in `KVCache`."""
        return self.parts[0].keys

    @property
    def window(self) -> int | None:
        """The ring's."""
        return self.parts[0].window

    @property
    def used(self) -> Array:
        """Tokens appended so far, padding included."""
        return self.parts[0].used

    def reserve(
        self, positions: Int[Array, "rows new"] | Any, schedule: ScheduleLike = None
    ) -> tuple["HybridCache", tuple[Slots, ...]]:
        """As in `KVCache`, with the slots in every part."""
        schedules = self._by_part(schedule)
        agreed = jnp.ones((), jnp.bool_)
        for part, own in zip(self.parts, schedules, strict=True):
            agreed = agreed & part.reserve(positions, own)[1].accepted
        taken = [part.reserve(positions, own, agreed) for part, own in zip(self.parts, schedules, strict=True)]
        return replace(self, parts=tuple(part for part, _ in taken)), tuple(slots for _, slots in taken)

    def rerotate(self, schedule: ScheduleLike) -> "HybridCache":
        """As in `KVCache`."""
        schedules = self._by_part(schedule)
        if not any(schedules):
            raise ValueError("`schedule` must be a schedule for at least one layer group; got None. Name one.")
        own = zip(self.parts, schedules, strict=True)
        return replace(self, parts=tuple(part if turn is None else part.rerotate(turn) for part, turn in own))

    def check(self) -> "HybridCache":
        """As in `KVCache`."""
        for part in self.parts:
            part.check()
        return self

    def _by_part(self, schedule: ScheduleLike) -> list[GroupSchedules | None]:
        """The schedules of the groups of every part; None where none of them turns."""
        named = by_group(schedule, tuple(dict.fromkeys(self.layer_groups)), self.parts[0].k.shape[-1]) or {}
        own = [{group: named.get(group) for group in part.groups} for part in self.parts]
        return [turns if any(turn is not None for turn in turns.values()) else None for turns in own]


AnyCache = KVCache | HybridCache


def parts_of(cache: AnyCache) -> tuple[KVCache, ...]:
    """The caches that a cache is made of."""
    return cache.parts if isinstance(cache, HybridCache) else (cache,)


def with_parts(cache: AnyCache, parts: tuple[KVCache, ...]) -> AnyCache:
    """A cache of the same kind, made of these."""
    return replace(cache, parts=parts) if isinstance(cache, HybridCache) else parts[0]


def reserve(cache: AnyCache, positions: Array, schedule: ScheduleLike) -> tuple[AnyCache, tuple[Slots, ...]]:
    """The cache once tokens are in it, but for their keys and values, and their slots in every part."""
    after, slots = cache.reserve(positions, schedule)
    return after, slots if isinstance(slots, tuple) else (slots,)


def stored(cache: AnyCache) -> Store:
    """Keys and values of every part."""
    return tuple((part.k, part.v) for part in parts_of(cache))


def with_stored(cache: AnyCache, store: Any) -> AnyCache:
    """The cache with other keys and values."""
    return with_parts(
        cache, tuple(replace(part, k=k, v=v) for part, (k, v) in zip(parts_of(cache), store, strict=True))
    )


def places(cache: AnyCache | None, layer_groups: tuple[str, ...]) -> Places:
    """Where every layer lies in the parts of a cache."""
    parts = (layer_groups,) if cache is None else tuple(part.layer_groups or () for part in parts_of(cache))
    part = np.array([next(p for p, own in enumerate(parts) if group in own) for group in layer_groups], np.int32)
    index = np.array([np.sum(part[:layer] == own) for layer, own in enumerate(part)], np.int32)
    return Places(jnp.asarray(part), jnp.asarray(index))


def empty_cache(
    config: DecoderConfig, batch: int, capacity: int, *, keys: Keys, dtype: Any, chunk: int | None
) -> AnyCache:
    """As `Decoder.empty_cache`."""
    check_count("capacity", capacity)
    check_count("chunk", chunk, none="keeps as many tokens in every layer")

    def part(layer_groups: tuple[str, ...], slots: int) -> KVCache:
        window = config.window_of(layer_groups)
        attention = config.attention
        cache = KVCache.empty(
            batch,
            slots,
            attention.kv_count,
            attention.head_width,
            keys=keys,
            window=None if window is None or slots < window else window,
            dtype=jnp.dtype(config.dtype) if dtype is None else dtype,
            layout=config.layout,
        )
        return replace(cache.for_layers(layer_groups), pair_axes=config.pair_axes)

    sliding = tuple(group for group in config.layer_groups if config.window_of((group,)) is not None)
    window = config.window_of(sliding) if sliding else None
    if chunk is None or window is None or window + chunk - 1 >= capacity:
        return part(config.layer_groups, capacity)
    ring = part(sliding, window + chunk - 1)
    rest = tuple(group for group in config.layer_groups if group not in sliding)
    return HybridCache((ring, part(rest, capacity)), config.layer_groups) if rest else ring

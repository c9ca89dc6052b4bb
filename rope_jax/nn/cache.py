"""The KV cache: a value that goes into a forward and comes out of it, with the position of every key."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rope_jax.layout import Layout, check_layout
from rope_jax.nn.checks import check_cache_sizes, check_dtype, check_layer_groups, check_member, check_one_stream
from rope_jax.nn.schedules import MIXED, GroupSchedules, ScheduleLike, by_group, changes, recorded, stacked
from rope_jax.nn.slots import Occupancy, Slots, no_room, occupied, room, token_rows, written
from rope_jax.positions import is_traced
from rope_jax.rotation import rotate

Keys = Literal["rotated", "unrotated"]

_DATA = ("k", "v", "positions", "used", "lost", "overfull", "mixed", "schedule")
_META = ("keys", "window", "layout", "layer_groups", "pair_axes")
_USED = "`for_layers` must be called on a new cache; got tokens, a schedule or layers in it. Start from KVCache.empty."


@partial(jax.tree_util.register_dataclass, data_fields=_DATA, meta_fields=_META)
@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values of the tokens so far, and where each stands.

    Functional: `append` returns another cache, so a forward whose cache is dropped has not advanced anything. Each
    token has its row's own position; padding (a negative position) takes a slot that no query ever sees.

    Attributes:
      k, v: [(layers,) batch, capacity, kv_heads, head_dim].
      positions: [batch, capacity] int32, in tokens; -1 is an empty slot or padding.
      used: int32, tokens appended so far, padding included.
      lost: [batch] int32, the largest position that a ring has overwritten; -1 for none.
      overfull, mixed: set under jit by an append that was refused; `check` raises on them.
      schedule: what rotated keys were rotated by, for every layer group; None: not stated.
      keys: "rotated" or "unrotated" (to be rotated whenever they are read).
      window: a ring's window in tokens; None: the cache ends when it is full.
      layout: which channels of the keys form a pair.
      layer_groups: the group of every layer when k and v have an axis of layers; None for one layer.
      pair_axes: those of the model; the cache keeps `positions` alone, so keys turned by streams cannot turn on.
    """

    # Any: tree transformations build caches of placeholders.
    k: Array | Any
    v: Array | Any
    positions: Array | Any
    used: Array | Any
    lost: Array | Any
    overfull: Array | Any
    mixed: Array | Any
    schedule: GroupSchedules | Any
    keys: Keys
    window: int | None
    layout: Layout
    layer_groups: tuple[str, ...] | None = None
    pair_axes: tuple[int, ...] | None = None

    @classmethod
    def empty(
        cls,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        *,
        keys: Keys = "rotated",
        window: int | None = None,
        dtype: Any = jnp.float32,
        layout: Layout = "half",
    ) -> "KVCache":
        """A cache without tokens.

        Args:
          batch, kv_heads, head_dim: sizes of the keys and values.
          capacity: slots of a row. With `window` they form a ring that overwrites the oldest tokens; appending up to
            n tokens at a time then takes window + n - 1 slots.
          keys: "rotated" keys are read as they are; "unrotated" ones are rotated by the schedule of each forward.
          window: the largest window of the layers that read this cache, in tokens.
          dtype: of the stored keys and values, "float32", "bfloat16" or "float16" (with x64 enabled "float64" too).
          layout: as in `rotate`.

        Raises:
          TypeError, ValueError: sizes below 1, a ring smaller than its window, other dtypes, unknown keys, layouts.

        Example:
          >>> KVCache.empty(1, 8, 2, 4).k.shape
          (1, 8, 2, 4)
        """
        check_cache_sizes(window, batch=batch, capacity=capacity, kv_heads=kv_heads, head_dim=head_dim)
        check_member("keys", keys, ("rotated", "unrotated"))
        check_layout(layout)
        zeros = jnp.zeros((batch, capacity, kv_heads, head_dim), check_dtype(dtype))
        return cls(
            k=zeros,
            v=jnp.zeros_like(zeros),
            positions=jnp.full((batch, capacity), -1, jnp.int32),
            used=jnp.zeros((), jnp.int32),
            lost=jnp.full((batch,), -1, jnp.int32),
            overfull=jnp.zeros((), jnp.bool_),
            mixed=jnp.zeros((), jnp.bool_),
            schedule=None,
            keys=keys,
            window=window,
            layout=layout,
        )

    def for_layers(self, layer_groups: tuple[str, ...]) -> "KVCache":
        """An empty cache for layers that advance together: keys and values of each, one set of positions.

        Raises:
          TypeError, ValueError: no tuple of group names; tokens, layers or a schedule are there already.
        """
        check_layer_groups(layer_groups)
        if self.layer_groups is not None or self.schedule is not None or (not is_traced(self.used) and self.used != 0):
            raise ValueError(_USED)
        k = jnp.zeros((len(layer_groups), *self.k.shape), self.k.dtype)
        return replace(self, k=k, v=jnp.zeros_like(k), layer_groups=layer_groups)

    @property
    def capacity(self) -> int:
        """Slots of a row."""
        return self.positions.shape[-1]

    @property
    def groups(self) -> tuple[str, ...]:
        """The layer groups, each once."""
        return ("all",) if self.layer_groups is None else tuple(dict.fromkeys(self.layer_groups))

    def append(
        self,
        k: Float[Array, "*layers batch new kv_heads head_dim"],
        v: Float[Array, "*layers batch new kv_heads head_dim"],
        positions: Int[Array, "rows new"] | Any,
        schedule: ScheduleLike = None,
    ) -> "KVCache":
        """A cache with more tokens.

        Args:
          k, v: [(layers,) batch, new, kv_heads, head_dim], stored in the dtype of the cache; k as `keys` says.
          positions: [batch or 1, new] integers, in tokens; negative is padding.
          schedule: what the keys were rotated by; a cache of rotated keys remembers it.

        Returns:
          The longer cache. Under jit, tokens that are refused change nothing but a flag, which `check` raises on.

        Raises:
          ValueError: no room, a schedule other than that of the keys already there, shapes that do not fit.

        Example:
          >>> k = v = jnp.ones((1, 3, 2, 4))
          >>> KVCache.empty(1, 4, 2, 4).append(k, v, jnp.array([[-1, 0, 1]])).positions.tolist()
          [[-1, 0, 1, -1]]
        """
        cache, slots = self.reserve(positions, schedule)
        expected = (*self.k.shape[:-3], jnp.shape(positions)[-1], *self.k.shape[-2:])
        if not k.shape == v.shape == expected:
            raise ValueError(f"`k` and `v` must be {expected}; got {k.shape} and {v.shape}. Give each position one.")
        return replace(cache, k=written(self.k, k, slots), v=written(self.v, v, slots))

    def reserve(
        self, positions: Int[Array, "rows new"] | Any, schedule: ScheduleLike = None, agreed: Array | Any = True
    ) -> tuple["KVCache", Slots]:
        """The cache once tokens at `positions` are in it, but for their keys and values, and the slots of those.

        The half of `append` that is done once for all layers; `agreed` says whether a cache of others takes them, too.
        """
        positions = token_rows(positions, self.positions.shape, self.window)
        record, unmixed = self._record(schedule)
        now = Occupancy(self.positions, self.used, self.lost)
        fits = room(now, positions, self.window)
        if not is_traced(fits) and not fits:
            raise ValueError(no_room(self.capacity, self.window))
        if not is_traced(unmixed) and not unmixed:
            raise ValueError(MIXED)
        start = self.used if self.window is None else self.used % self.capacity
        slots = Slots(start, fits & unmixed & agreed, self.window is not None)
        after = occupied(now, positions, slots)
        cache = replace(
            self,
            positions=after.held,
            used=after.used,
            lost=after.lost,
            overfull=self.overfull | ~fits,
            mixed=self.mixed | ~unmixed,
            schedule=record,
        )
        return cache, slots

    def rerotate(self, schedule: ScheduleLike) -> "KVCache":
        """The cache with its keys rotated by another schedule instead, in closed form.

            k_new = e^(i p (w_new - w_old)) (a_new / a_old) k_old

        In a model of several layers the later keys still come from hidden states under the old schedule: only a new
        prefill changes those. On an empty cache it states the schedule.

        Args:
          schedule: a schedule, or a dict of them by layer group.

        Raises:
          ValueError: unrotated keys (they take any schedule when read), or keys whose schedule was never stated.

        Example:
          >>> from rope_jax import geometric_schedule
          >>> KVCache.empty(1, 8, 2, 4).rerotate(geometric_schedule(4)).schedule["all"].pairs
          2
        """
        if self.keys != "rotated":
            raise ValueError("`keys` must be rotated to be rerotated; got unrotated. Rotate them when they are read.")
        new = by_group(schedule, self.groups, self.k.shape[-1])
        if new is None:
            raise ValueError("`schedule` must be a schedule for at least one layer group; got None. Name one.")
        if self.schedule is None:
            if not is_traced(self.used) and self.used != 0:
                raise ValueError("`schedule` must have been stated at append; got keys without one. Prefill with it.")
            return replace(self, schedule=new, mixed=self.mixed | (self.used != 0))
        check_one_stream(self.pair_axes)
        turns = stacked(changes(self.schedule, new, jnp.maximum(self.positions, 0), self.k.shape[-2]))
        layers = np.array([self.groups.index(group) for group in self.layer_groups] if self.layer_groups else 0)
        table = jax.tree.map(lambda leaf: leaf[layers], turns)
        return replace(self, k=rotate(self.k, table, layout=self.layout), schedule=new)

    def check(self) -> "KVCache":
        """The cache itself, after raising on what an append or `rerotate` under jit could only mark.

        Raises:
          ValueError: tokens were refused for want of room or for another schedule. TypeError: called under jit.

        Example:
          >>> KVCache.empty(1, 8, 2, 4).check().used.item()
          0
        """
        if is_traced(self.overfull):
            raise TypeError("`check` must be called outside jit; got traced flags. Return the cache from jit first.")
        if np.any(self.overfull):
            raise ValueError(no_room(self.capacity, self.window))
        if np.any(self.mixed):
            raise ValueError(MIXED)
        return self

    def _record(self, schedule: ScheduleLike) -> tuple[GroupSchedules | None, Array]:
        """The schedule to remember, and whether it is that of the keys already there."""
        if self.keys == "unrotated":
            return None, jnp.ones((), jnp.bool_)
        return recorded(by_group(schedule, self.groups, self.k.shape[-1]), self.schedule, self.used)

"""Which slots of a cache the next tokens take, whether they may, and writing them: refused tokens change nothing."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from rope_jax.positions import LARGEST_POSITION, check_positions

# Keys and values [layers, batch, capacity, kv_heads, head_dim], for every part of a cache.
Store = tuple[tuple[Array, Array], ...]


@partial(jax.tree_util.register_dataclass, data_fields=["start", "accepted"], meta_fields=["ring"])
@dataclass(frozen=True, eq=False)
class Slots:
    """Where the tokens of one append go: from slot `start` on, round a ring or not, if `accepted`."""

    start: Array | Any
    accepted: Array | Any
    ring: bool


class Occupancy(NamedTuple):
    """Who sits in the slots: what an append reads and moves on.

    `held` [batch, capacity] positions, -1 for nobody; `used` tokens appended so far; `lost` [batch] the largest
    position that a ring has overwritten, -1 for none.
    """

    held: Int32[Array, "batch capacity"]
    used: Int32[Array, ""]
    lost: Int32[Array, "batch"]


def token_rows(positions: Any, held: tuple[int, ...], window: int | None) -> Int32[Array, "batch new"]:
    """The positions of new tokens, a row for each of the `held` [batch, capacity] slots, padding as -1."""
    positions, (batch, capacity) = check_positions(positions), held
    if positions.ndim != 2 or positions.shape[0] not in (1, batch) or not positions.shape[1]:
        raise ValueError(
            f"`positions` must be [batch or 1, new] for a cache of {batch} rows; got {positions.shape}. "
            "Give every new token one, and rows that are alike a leading axis of 1."
        )
    if positions.shape[1] > capacity:
        raise ValueError(no_room(capacity, window))
    return jnp.broadcast_to(jnp.maximum(positions, -1), (batch, positions.shape[1]))


def room(now: Occupancy, positions: Int32[Array, "batch new"], window: int | None) -> Bool[Array, ""]:
    """Whether the new tokens fit: a ring has room while no token, from the new ones on, could see a lost key."""
    if window is None:
        return now.used + positions.shape[1] <= now.held.shape[1]
    lost = _lost(now, positions.shape[1])
    earliest = jnp.min(jnp.where(positions < 0, LARGEST_POSITION, positions), axis=1)
    return jnp.all((lost < 0) | (earliest - lost >= window))


def no_room(capacity: int, window: int | None) -> str:
    """What is said when new tokens do not fit."""
    if window is None:
        return f"`capacity` must hold every token appended; got {capacity} slots. Make a larger cache."
    return (
        f"`capacity` must hold every key that a token can still see; got {capacity} slots for window {window}. "
        "Appending n tokens at a time, in order, takes window + n - 1 slots."
    )


def occupied(now: Occupancy, positions: Int32[Array, "batch new"], slots: Slots) -> Occupancy:
    """The occupancy after the new tokens have taken their slots."""
    held = written(now.held[..., None, None], positions[..., None, None], slots)[..., 0, 0]
    used = jnp.where(slots.accepted, now.used + positions.shape[1], now.used)
    lost = jnp.where(slots.accepted, _lost(now, positions.shape[1]), now.lost) if slots.ring else now.lost
    return Occupancy(held, used, lost)


def written(buffer: Array, new: Array, slots: Slots, layer: Array | int | None = None) -> Array:
    """`buffer` [(layers,) batch, capacity, ., .] with the tokens of `new` [(layers,) batch, new, ., .] in their slots.

    With `layer`, `new` is that layer's and only its part is touched: a scan over layers updates its carry in place.
    """
    new = new.astype(buffer.dtype)
    axis, start = buffer.ndim - 3, slots.start
    layered = layer is not None
    if slots.ring and new.shape[-3] > 1:
        new, start = _round(buffer if layer is None else buffer[layer], new, slots), jnp.zeros((), jnp.int32)
    # One window, dropped whole where it lies outside: that is where refused tokens go. A slice would slide back over
    # older slots, and mending that by writing back what is there makes XLA copy the buffer in every layer.
    start = jnp.where(slots.accepted, start, buffer.shape[axis]).astype(jnp.int32)
    corner = [jnp.asarray(layer).astype(jnp.int32), start] if layered else [start]
    window = jax.lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(new.ndim)),
        inserted_window_dims=(0,) if layered else (),
        scatter_dims_to_operand_dims=(0, axis) if layered else (axis,),
    )
    return jax.lax.scatter(buffer, jnp.stack(corner), new, window, mode=jax.lax.GatherScatterMode.FILL_OR_DROP)


class Places(NamedTuple):
    """Where every layer's keys and values lie: in which part of the store, as which layer of it; [layers] int32."""

    part: Int32[Array, "*layers"] | Any
    layer: Int32[Array, "*layers"] | Any


def written_in_place(store: Store, new: tuple[Array, Array], slots: tuple[Slots, ...], place: Places) -> Store:
    """The store with one layer's new keys and values in its part; the other parts stay as they are."""

    def own(part: int) -> Slots:
        if len(slots) == 1:
            return slots[0]
        return replace(slots[part], accepted=slots[part].accepted & (place.part == part))

    return tuple(
        (written(k, new[0], own(part), place.layer), written(v, new[1], own(part), place.layer))
        for part, (k, v) in enumerate(store)
    )


def _round(held: Array, new: Array, slots: Slots) -> Array:
    """All slots of a ring once the new tokens are in: they may wrap around, which no window does."""
    axis, count = held.ndim - 3, new.shape[-3]
    offset = _offset(held.shape[axis], slots.start)
    taken = jnp.take(new, jnp.minimum(offset, count - 1), axis=axis, mode="clip")
    return jnp.where((offset < count).reshape((1,) * axis + (-1, 1, 1)), taken, held)


def _offset(capacity: int, start: Array) -> Int32[Array, "capacity"]:
    """How far round the ring every slot lies behind `start`."""
    return (jnp.arange(capacity, dtype=jnp.int32) - start) % capacity


def _lost(now: Occupancy, new: int) -> Int32[Array, "batch"]:
    """The largest position of each row that is gone once `new` tokens more are in the ring."""
    capacity = now.held.shape[1]
    overwritten = _offset(capacity, now.used % capacity) < new
    return jnp.maximum(now.lost, jnp.max(jnp.where(overwritten[None, :], now.held, -1), axis=1))

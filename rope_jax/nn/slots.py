"""Which slots of a cache the next tokens take, whether they may, and writing them: refused tokens change nothing."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from rope_jax.positions import LARGEST_POSITION, check_positions


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
    axis = buffer.ndim - 3
    corner = [jnp.zeros((), jnp.int32)] * buffer.ndim
    if layer is not None:
        new, corner[0] = new[None], jnp.asarray(layer).astype(jnp.int32)
    kept = slots.accepted
    if slots.ring and new.shape[axis] > 1:
        # The tokens may wrap around, which no slice does: every slot takes the token that falls to it.
        offset = _offset(buffer.shape[axis], slots.start)
        kept = (kept & (offset < new.shape[axis]))[:, None, None]
        kept = kept.reshape((1,) * axis + kept.shape)
        new = jnp.take(new, jnp.minimum(offset, new.shape[axis] - 1), axis=axis, mode="clip")
    else:
        corner[axis] = slots.start
    # A slice that does not fit would slide back over older slots: refused tokens write back what is there.
    held = jax.lax.dynamic_slice(buffer, corner, new.shape)
    return jax.lax.dynamic_update_slice(buffer, jnp.where(kept, new, held), corner)


def _offset(capacity: int, start: Array) -> Int32[Array, "capacity"]:
    """How far round the ring every slot lies behind `start`."""
    return (jnp.arange(capacity, dtype=jnp.int32) - start) % capacity


def _lost(now: Occupancy, new: int) -> Int32[Array, "batch"]:
    """The largest position of each row that is gone once `new` tokens more are in the ring."""
    capacity = now.held.shape[1]
    overwritten = _offset(capacity, now.used % capacity) < new
    return jnp.maximum(now.lost, jnp.max(jnp.where(overwritten[None, :], now.held, -1), axis=1))

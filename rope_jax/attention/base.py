"""What every attention backend is handed, what it gives back, and the one rule of who sees whom."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32

from rope_jax.attention.token_order import Dealing

ORDERS = ("any", "increasing", "contiguous")


class Band(NamedTuple):
    """Which pairs belong to one region of a score map: low <= q_key - kv_key < high.

    Attributes:
      q_keys, kv_keys: [batch or 1, q or kv] int32, from 0 on.
      low, high: int32 scalars or numbers; None for `high` sets no bound.
    """

    q_keys: Array
    kv_keys: Array
    low: Array | int
    high: Array | int | None

    def holds(self, apart: Array) -> Array:
        """Whether pairs whose keys lie `apart` belong to it."""
        inside = apart >= self.low
        return inside if self.high is None else inside & (apart < self.high)


class Shard(NamedTuple):
    """Which tokens of the row the queries are, where the keys are all of them, in the order they were dealt out.

    Attributes:
      axis: the mesh axis, inside `jax.shard_map`, whose index is that of the shard.
      number: shards of the row.
      dealing: how the tokens were dealt out, as in `dealt`.
    """

    axis: str
    number: int
    dealing: Dealing


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of `attend`, checked: backends read it and check nothing.

    Attributes:
      q: [batch, q, heads, head_dim], rotated; k: [batch, kv, kv_heads, head_dim], rotated; v: [batch, kv, kv_heads, *].
      q_positions, kv_positions: [batch or 1, q or kv] int32, in tokens; negative is padding.
      q_segments, kv_segments: the same shapes, 0 is padding; or both None.
      window: tokens, an int or an int32 scalar; None sees the whole past.
      softcap: largest absolute logit, a number; None leaves the logits alone.
      sinks, slopes: [heads] float32, or None.
      scale: a Python number, or float32 of shape [] or [heads].
      order: one of `ORDERS`, what the caller promises of the positions.
      band: for one region of a score map, the pairs that are its own; None: all.
      shard: for the queries of one shard and the keys of all; `order` then speaks of the whole row, undealt.
    """

    q: Float[Array, "batch q heads head_dim"]
    k: Float[Array, "batch kv kv_heads head_dim"]
    v: Float[Array, "batch kv kv_heads v_dim"]
    q_positions: Int32[Array, "rows q"]
    kv_positions: Int32[Array, "kv_rows kv"]
    q_segments: Int32[Array, "segment_rows q"] | None
    kv_segments: Int32[Array, "kv_segment_rows kv"] | None
    window: int | Int32[Array, ""] | None
    softcap: float | None
    sinks: Float32[Array, "heads"] | None
    slopes: Float32[Array, "heads"] | None
    scale: float | Float32[Array, ""] | Float32[Array, "heads"]
    order: str
    band: Band | None = None
    shard: Shard | None = None

    @property
    def out_dtype(self) -> np.dtype:
        """The dtype of the result: that of q, or float32 for a region, which is merged with others."""
        return jnp.dtype(self.q.dtype if self.band is None else jnp.float32)

    @property
    def groups(self) -> int:
        """Query heads that share one key head."""
        return self.q.shape[2] // self.k.shape[2]

    def head_scale(self) -> Float32[Array, "heads"]:
        """The logit scale of every head."""
        return jnp.broadcast_to(jnp.asarray(self.scale, jnp.float32), self.q.shape[2:3])


@runtime_checkable
class Backend(Protocol):
    """A module that computes attention one way."""

    def refuses(self, request: Request) -> str | None:
        """Why this backend cannot serve the request, as the end of a sentence; None when it can."""

    def attention(self, request: Request) -> tuple[Array, Array]:
        """The result [batch, q, heads, v_dim] in `out_dtype`, and the log-sum-exp [batch, q, heads] in float32.

        The log-sum-exp is over the visible logits and the sink: with it partial results merge. It is -inf where
        there are neither. Rows that see nothing give zeros.
        """


def token_positions(positions: Int32[Array, "*rows seq"], segments: Int32[Array, "*rows2 seq"] | None) -> Array:
    """Positions with every kind of padding turned into -1."""
    padding = positions < 0 if segments is None else (positions < 0) | (segments == 0)
    return jnp.where(padding, -1, positions)


def sees(q_positions: Array, kv_positions: Array, window: Array | int | None, same_segment: Array | None) -> Array:
    """The rule: the key's token is real, not after the query's, nearer than the window, and of the same segment.

    Operands broadcast against each other; padding is already -1.
    """
    seen = (kv_positions >= 0) & (kv_positions <= q_positions)
    if window is not None:
        seen = seen & (q_positions - kv_positions < window)
    return seen if same_segment is None else seen & same_segment


def visibility(request: Request) -> Bool[Array, "rows q kv"]:
    """Which key every query sees, for backends that hold the whole [q, kv] matrix."""
    same = None
    if request.q_segments is not None and request.kv_segments is not None:
        same = request.q_segments[:, :, None] == request.kv_segments[:, None, :]
    q_positions = token_positions(request.q_positions, request.q_segments)
    kv_positions = token_positions(request.kv_positions, request.kv_segments)
    seen = sees(q_positions[:, :, None], kv_positions[:, None, :], request.window, same)
    if request.band is None:
        return seen
    return seen & request.band.holds(request.band.q_keys[:, :, None] - request.band.kv_keys[:, None, :])


def distances(request: Request) -> Float32[Array, "rows q kv"]:
    """Tokens from key to query, never negative: what ALiBi slopes multiply."""
    apart = request.q_positions[:, :, None] - request.kv_positions[:, None, :]
    return jnp.maximum(apart, 0).astype(jnp.float32)


def unusable(x: Float[Array, "batch seq heads dim"]) -> Bool[Array, "batch seq"]:
    """Tokens that hold a NaN or an infinity: they spoil the rows that see them, and must not touch any other.

    A product with a weight of exactly zero does not keep them out (0 * NaN is NaN), so backends zero them first.
    """
    return ~jnp.all(jnp.isfinite(x), axis=(2, 3))


def separated(request: Request, *, repeat: bool = True) -> tuple[Array, Array, Array, Array, Array]:
    """What backends that hold the whole matrix start from, with nothing left in it that may spread.

    Returns:
      q, k, v in float32, unusable tokens zeroed, keys and values repeated for every query head if `repeat`;
      the visibility [rows, q, kv]; and which rows [batch, q] see something unusable: their result is NaN.
    """
    visible = visibility(request)
    bad_q, bad_kv = unusable(request.q), unusable(request.k) | unusable(request.v)
    occupied = jnp.any(visible, axis=-1)
    spoiled = jnp.any(visible & bad_kv[:, None, :], axis=-1) | (occupied & bad_q)
    # The rows that turn NaN are cleaned as well: dropped from the loss, they must not spoil the gradients of others.
    q = jnp.where(bad_q[..., None, None], 0.0, request.q.astype(jnp.float32))
    k, v = (jnp.where(bad_kv[..., None, None], 0.0, x.astype(jnp.float32)) for x in (request.k, request.v))
    if repeat:
        k, v = (jnp.repeat(x, request.groups, axis=2) for x in (k, v))
    return q, k, v, visible, spoiled

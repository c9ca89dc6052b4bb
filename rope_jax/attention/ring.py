"""Attention whose keys go round: every shard keeps its queries, and the keys, values and tokens of all come by.

A shard's keys travel in pieces, one piece of every shard at a time, and what a piece gave is merged at once. So no
device ever holds more than two pieces that are not its own:

    lse' = log(exp(lse) + exp(lse_r)),   o' = exp(lse - lse') o + exp(lse_r - lse') o_r

The backward pass sends the pieces round again, and with each its gradient, which every shard adds to. It needs no more
than the result and its log-sum-exp, as that of `chunked` does, for p_ij = exp(s_ij - lse_i) holds for any part of the
keys.

Reference: arXiv 2310.01889 (ring attention), arXiv 2205.14135 (recomputation from the log-sum-exp).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rope_jax.attention import chunked
from rope_jax.attention.base import Request, unusable
from rope_jax.attention.chunked_gradient import gradients
from rope_jax.attention.regions import merged
from rope_jax.attention.tiles import Logits, Setting, Tokens

PIECES = 8
"""Pieces that a shard's keys are sent in, where they divide: a device then holds a quarter of its share besides it."""
SHORTEST = 128
"""Tokens below which a piece is not cut further: messages that small take longer to start than to arrive."""


class Ring(NamedTuple):
    """What is fixed when the program is compiled: the tiles, the mesh axis, its shards, and the pieces of each."""

    setting: Setting
    axis: str
    shards: int
    pieces: int


def attention(request: Request, axis: str, shards: int) -> tuple[Array, Array]:
    """Float32 result and log-sum-exp of a shard's queries over all keys; sinks are left to the merge."""
    tokens = chunked.tokens_of(request)
    side = chunked.block_side(request.q.shape[0] * request.q.shape[2])
    setting = Setting(request.softcap, side, side, jnp.dtype(jnp.float32))
    logits = Logits(request.head_scale(), request.slopes, None)
    q = jnp.where(unusable(request.q)[..., None, None], jnp.nan, request.q)
    return _attention(Ring(setting, axis, shards, pieces(request.k.shape[1])), q, request.k, request.v, logits, tokens)


def pieces(length: int) -> int:
    """Into how many equal pieces the keys of a shard are cut: `PIECES` at most, `SHORTEST` tokens at least."""
    number = PIECES
    while number > 1 and (length % number or length // number < SHORTEST):
        number -= 1
    return number


class Travelling(NamedTuple):
    """A piece of the keys and all that is known of its tokens."""

    k: Array
    v: Array
    positions: Array
    segments: Array | None
    keys: Array | None

    def beside(self, tokens: Tokens) -> Tokens:
        """The shard's own queries, and these keys."""
        band = tokens.band
        if band is not None and self.keys is not None:
            band = band._replace(kv_keys=self.keys)
        return tokens._replace(kv_positions=self.positions, kv_segments=self.segments, band=band)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(ring: Ring, q: Array, k: Array, v: Array, logits: Logits, tokens: Tokens) -> tuple[Array, Array]:
    return _forward(ring, q, k, v, logits, tokens)


def _saving(ring: Ring, q: Array, k: Array, v: Array, logits: Logits, tokens: Tokens) -> Any:
    """The result, and what the backward pass needs."""
    out, lse = _forward(ring, q, k, v, logits, tokens)
    return (out, lse), (q, k, v, logits, tokens, out, lse)


def _forward(ring: Ring, q: Array, k: Array, v: Array, logits: Logits, tokens: Tokens) -> tuple[Array, Array]:
    cut = _cutter(ring, k, v, tokens)

    def meet(carry: Any, _: None) -> tuple[Any, None]:
        seen, here = carry
        # Sent before it is read, so that the next piece arrives meanwhile.
        coming = _passed_on(ring, here)
        part = chunked.forward(ring.setting, q, here.k, here.v, logits, here.beside(tokens))
        return (merged([seen, part], None), coming), None

    def go_round(seen: Any, piece: Array) -> tuple[Any, None]:
        (seen, _), _ = jax.lax.scan(meet, (seen, cut(piece)), length=ring.shards)
        return seen, None

    nothing = jnp.zeros((*q.shape[:3], v.shape[-1]), jnp.float32), jnp.full(q.shape[:3], -jnp.inf, jnp.float32)
    return jax.lax.scan(go_round, nothing, jnp.arange(ring.pieces, dtype=jnp.int32))[0]


def _backward(ring: Ring, saved: Any, cotangents: tuple[Array, Array]) -> tuple[Any, ...]:
    """Cotangents of q, k, v and `Logits`; those of a piece travel with it, and come home last."""
    q, k, v, logits, tokens, out, lse = saved
    cut, exact = _cutter(ring, k, v, tokens), q.astype(jnp.float32)

    def meet(carry: Any, _: None) -> tuple[Any, None]:
        own, theirs, here = carry
        keys = here.k.astype(jnp.float32), here.v.astype(jnp.float32)
        found = gradients(ring.setting, (exact, *keys, logits, here.beside(tokens), out, lse), cotangents)
        own = jax.tree.map(jnp.add, own, (found[0], found[3]))
        theirs = jax.tree.map(jnp.add, theirs, found[1:3])
        return (own, *_passed_on(ring, (theirs, here))), None

    def go_round(carry: Any, piece: Array) -> tuple[Any, None]:
        own, home = carry
        here = cut(piece)
        start = own, (_zeros(here.k), _zeros(here.v)), here
        (own, back, _), _ = jax.lax.scan(meet, start, length=ring.shards)
        place = partial(jax.lax.dynamic_update_slice_in_dim, start_index=piece * here.k.shape[1], axis=1)
        return (own, tuple(place(whole, part) for whole, part in zip(home, back, strict=True))), None

    start = (_zeros(q), jax.tree.map(_zeros, logits)), (_zeros(k), _zeros(v))
    (own, home), _ = jax.lax.scan(go_round, start, jnp.arange(ring.pieces, dtype=jnp.int32))
    return own[0].astype(q.dtype), home[0].astype(k.dtype), home[1].astype(v.dtype), own[1], None


def _zeros(x: Array) -> Array:
    return jnp.zeros(x.shape, jnp.float32)


def _cutter(ring: Ring, k: Array, v: Array, tokens: Tokens) -> Any:
    """The piece of that number, of a shard's own keys."""
    keys = None if tokens.band is None else tokens.band.kv_keys
    whole = Travelling(k, v, tokens.kv_positions, tokens.kv_segments, keys)
    size = k.shape[1] // ring.pieces

    def cut(piece: Array) -> Travelling:
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, piece * size, size, axis=1), whole)

    return cut


def _passed_on(ring: Ring, tree: Any) -> Any:
    """Everything sent to the next shard, and what came from the one before."""
    route = [(shard, (shard + 1) % ring.shards) for shard in range(ring.shards)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, route), tree)


_attention.defvjp(_saving, _backward)

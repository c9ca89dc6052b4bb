"""`attend_sharded`: `attend` divided over a mesh, rows and heads by themselves, the sequence by one of two forms.

Positions and segments are data that travel with their tokens, so the rule of who sees whom is the same on every shard,
whatever tokens it was dealt.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from rope_jax.attention import ring
from rope_jax.attention.base import Request, Shard
from rope_jax.attention.dispatch import BACKENDS, answered, attend
from rope_jax.attention.order import check_order
from rope_jax.attention.regions import Region, check_regions, merged
from rope_jax.attention.request import checked
from rope_jax.attention.sharding import Division, Sharding, check_divisible, division
from rope_jax.attention.token_order import restored
from rope_jax.positions import is_traced


class Plan(NamedTuple):
    """What is fixed when the program is compiled; `settings` are the fields of the request that are no arrays."""

    divided: Division
    sharding: Sharding
    backend: str
    settings: tuple[tuple[str, Any], ...]


def attend_sharded(
    q: Float[Array | np.ndarray, "batch q heads head_dim"],
    k: Float[Array | np.ndarray, "batch kv kv_heads head_dim"],
    v: Float[Array | np.ndarray, "batch kv kv_heads v_dim"],
    *,
    sharding: Sharding,
    regions: Sequence[Region] | None = None,
    backend: str = "auto",
    **arguments: Any,
) -> Float[Array, "batch q heads v_dim"]:
    """`attend`, under `jax.shard_map` over the mesh of `jax.set_mesh`.

    Every device holds its part of the queries. By "all_gather" it attends with them to the keys of whole rows; by
    "ring" the keys come round in pieces, and results merge by their log-sum-exps:

        o = sum_r exp(lse_r - lse) o_r,   lse = log sum_r exp(lse_r)

    Args:
      q, k, v: as for `attend`, whole (the compiler knows which device holds what), their tokens dealt out over
        `sharding.context` in `sharding.order`. The mesh divides rows, query heads, key heads and lengths.
      sharding: which mesh axes divide what.
      regions: as for `attend`.
      backend: as for `attend`, on what a device holds; "ring" computes by blocks and takes "auto" and "chunked" only.
      arguments: those of `attend`. `order` is what holds of whole rows, before their tokens are dealt out.

    Returns:
      As `attend`; with no mesh, or one device on it, what `attend` returns.

    Raises:
      TypeError, ValueError: what `attend` refuses, sizes that the mesh does not divide, mesh axes that go unnamed.

    Reference: arXiv 2310.01889 (ring attention), arXiv 2407.21783 section 3.3.2 (all-gather of keys and values).

    Example:
      >>> x, positions = jnp.ones((1, 4, 2, 8)), jnp.arange(4)[None]
      >>> mesh = jax.make_mesh((1,), ("context",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> with jax.set_mesh(mesh):
      ...     out = attend_sharded(x, x, x, q_positions=positions, kv_positions=positions, sharding=Sharding())
      >>> out.shape
      (1, 4, 2, 8)
    """
    divided = division(sharding)
    if divided is None:
        return attend(q, k, v, regions=regions, backend=backend, **arguments)
    request = checked(q, k, v, **arguments)
    lengths, heads = (request.q.shape[1], request.k.shape[1]), (request.q.shape[2], request.k.shape[2])
    check_divisible(divided, sharding, batch=request.q.shape[0], heads=heads, lengths=lengths)
    check_order(_undealt(request, divided, sharding))
    _check_backend(backend, divided, sharding)
    parts = (request,) if regions is None else check_regions(regions, request)
    arrays, settings = zip(*map(_apart, parts), strict=True)
    return _over_shards(Plan(divided, sharding, backend, settings[0]), arrays, request.sinks)


def _check_backend(backend: str, divided: Division, sharding: Sharding) -> None:
    if sharding.form == "ring" and divided.context is not None and backend in BACKENDS and backend != "chunked":
        raise ValueError(
            f'`backend` must be "auto" or "chunked" for form="ring", which merges blocks of keys; got {backend!r}. '
            'Use form="all_gather".'
        )


def _undealt(request: Request, divided: Division, sharding: Sharding) -> Request:
    """The request with its tokens in their natural order, as far as `check_order` looks at them."""
    names = ("q_positions", "kv_positions", "q_segments", "kv_segments")
    sides = {name: values for name in names if (values := getattr(request, name)) is not None}
    natural = divided.context is None or sharding.order == "contiguous"
    if request.order == "any" or natural or any(map(is_traced, sides.values())):
        return request
    with jax.ensure_compile_time_eval():
        places = {name: restored(x.shape[1], divided.shards, sharding.order) for name, x in sides.items()}
        known: dict[str, Any] = {name: jnp.asarray(np.asarray(x)[:, places[name]]) for name, x in sides.items()}
    return replace(request, **known)


def _apart(part: Request) -> tuple[dict[str, Any], tuple[tuple[str, Any], ...]]:
    """The arrays of a request, and everything else."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    values["band"] = jax.tree.map(partial(jnp.asarray, dtype=jnp.int32), values["band"])
    arrays = {name: value for name, value in values.items() if name == "band" or hasattr(value, "dtype")}
    return arrays, tuple((name, value) for name, value in values.items() if name not in arrays)


# Compiled here, so that a call outside jit compiles once and not once per call.
@partial(jax.jit, static_argnums=0)
def _over_shards(plan: Plan, parts: tuple[dict[str, Any], ...], sinks: Array | None) -> Array:
    divided, batch = plan.divided, parts[0]["q"].shape[0]

    def spec(x: Array) -> PartitionSpec:
        """By the number of axes: scalars, [heads], [rows, seq], or [batch, seq, heads, head_dim]."""
        if x.ndim < 2:
            return PartitionSpec(*(divided.heads,) * x.ndim)
        return divided.spec(x.shape[0], divided.context, *(divided.heads,) * (x.ndim > 2))

    def local(parts: tuple[dict[str, Any], ...], sinks: Array | None) -> Array:
        requests = tuple(Request(**arrays, **dict(plan.settings)) for arrays in parts)
        if divided.context is None:
            return answered(requests, sinks, plan.backend)
        if plan.sharding.form == "ring":
            parted = [ring.attention(request, divided.context, divided.shards) for request in requests]
            return merged(parted, sinks)[0].astype(requests[0].q.dtype)
        shard = Shard(divided.context, divided.shards, plan.sharding.order)
        return answered(tuple(_gathered(request, shard) for request in requests), sinks, plan.backend)

    return jax.shard_map(
        local,
        in_specs=jax.tree.map(spec, (parts, sinks)),
        out_specs=divided.spec(batch, divided.context, divided.heads),
        axis_names=frozenset(divided.manual),
        # Kernels of jax say nothing of the mesh axes that their results vary over.
        check_vma=False,
    )(parts, sinks)


def _gathered(request: Request, shard: Shard) -> Request:
    """The queries of a shard and the keys of all, in the order of the shards."""
    gather = partial(jax.lax.all_gather, axis_name=shard.axis, axis=1, tiled=True)
    band = request.band
    return replace(
        request,
        k=gather(request.k),
        v=gather(request.v),
        kv_positions=gather(request.kv_positions),
        kv_segments=None if request.kv_segments is None else gather(request.kv_segments),
        band=None if band is None else band._replace(kv_keys=gather(band.kv_keys)),
        shard=shard,
    )

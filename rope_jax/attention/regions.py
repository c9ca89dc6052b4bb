"""Score maps: attention whose rotation depends on where query and key stand to each other, one region of pairs each.

    o_i = sum_r exp(lse_ir) o_ir / (exp(sink) + sum_r exp(lse_ir))

where o_ir and lse_ir are attention over the keys of region r, whose queries and keys turn that region's own way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32

from rope_jax.attention.base import Band, Request, visibility
from rope_jax.attention.validation import check_per_token
from rope_jax.layout import Layout, check_layout
from rope_jax.positions import is_traced
from rope_jax.rotation import rotate
from rope_jax.table import RotaryTable

CHECKED_PAIRS = 2**22
"""Pairs (batch * q * kv) up to which regions with keys of their own are compared pair by pair, on the host."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["q_table", "kv_table", "q_key", "kv_key", "low", "high"],
    meta_fields=["layout"],
)
@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """The pairs of query and key with `low <= q_key - kv_key < high`, and how both turn there.

    What a call of `attend` masks stays masked, whatever a region says: it parts the visible pairs. A pair in no region
    is not seen; a pair in two would count twice in the softmax, and is refused where that can be known (bounds that
    are numbers with keys in common, or known keys and at most 2^22 pairs).

    Args:
      q_table, kv_table: cos and sin of the queries and keys in this region, as `rotate` takes them; None: no turn.
      q_key, kv_key: [batch or 1, q or kv] integers from 0 on; None: the positions of the call.
      low, high: integers, or int32 scalars; `high` None sets no bound.
      layout: as in `rotate`.

    Example:
      >>> from rope_jax import attend, geometric_schedule, rotary_table
      >>> schedule, positions = geometric_schedule(4), jnp.arange(6)[None]
      >>> table, fixed = (rotary_table(schedule, p) for p in (positions, jnp.zeros_like(positions)))
      >>> near = Region(q_table=table, kv_table=table, high=4)
      >>> far = Region(q_table=rotary_table(schedule, jnp.full_like(positions, 4)), kv_table=fixed, low=4)
      >>> x = jnp.ones((1, 6, 2, 4))
      >>> attend(x, x, x, q_positions=positions, kv_positions=positions, regions=(near, far)).shape
      (1, 6, 2, 4)
    """

    # Any: tree transformations build regions of placeholders.
    q_table: RotaryTable | Any
    kv_table: RotaryTable | Any
    q_key: Array | Any = None
    kv_key: Array | Any = None
    low: Array | int | Any = 0
    high: Array | int | Any = None
    layout: Layout = "half"


def check_regions(regions: Any, request: Request) -> tuple[Request, ...]:
    """A request per region, q and k turned its way; sinks are left to the merge.

    Raises:
      TypeError, ValueError: what is no region, keys or tables that do not fit the tokens, regions that overlap.
    """
    if isinstance(regions, Region) or not isinstance(regions, Sequence):
        raise TypeError(f"`regions` must be a tuple of Region; got {type(regions).__name__}. Write (region,) for one.")
    if not regions:
        raise ValueError("`regions` must hold at least one Region; got none. Leave it out to attend plainly.")
    bands = tuple(_band(region, request) for region in regions)
    _check_apart(regions, bands, request)
    turned = []
    for region, band in zip(regions, bands, strict=True):
        q = request.q if region.q_table is None else rotate(request.q, region.q_table, layout=region.layout)
        k = request.k if region.kv_table is None else rotate(request.k, region.kv_table, layout=region.layout)
        turned.append(replace(request, q=q, k=k, sinks=None, band=band))
    return tuple(turned)


def merged(
    parts: Sequence[tuple[Array, Array]], sinks: Float32[Array, "heads"] | None
) -> tuple[Float32[Array, "batch q heads v_dim"], Float32[Array, "batch q heads"]]:
    """Results and log-sum-exps of regions as those of all their keys together, each sink counted once."""
    spoiled = jnp.any(jnp.stack([jnp.isnan(lse) for _, lse in parts]), axis=0)
    # Rows that are NaN in one region are cleaned in all: their weights must not carry it into the gradients of others.
    sums = [jnp.where(spoiled, -jnp.inf, lse) for _, lse in parts]
    if sinks is not None:
        sums.append(jnp.broadcast_to(sinks[None, None, :], spoiled.shape))
    top = jax.lax.stop_gradient(jnp.max(jnp.stack(sums), axis=0))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = [jnp.exp(lse - top) for lse in sums]
    total = sum(weights[1:], weights[0])
    empty = total == 0.0
    total = jnp.where(empty, 1.0, total)
    out = jnp.zeros_like(parts[0][0])
    for (part, _), weight in zip(parts, weights, strict=False):
        out = out + jnp.where(spoiled[..., None], 0.0, part) * (weight / total)[..., None]
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(total))
    return jnp.where(spoiled[..., None], jnp.nan, out), jnp.where(spoiled, jnp.nan, lse)


def _band(region: Any, request: Request) -> Band:
    if not isinstance(region, Region):
        raise TypeError(f"`regions` must hold Region; got {type(region).__name__}. A score map makes them.")
    check_layout(region.layout)
    low, high = _bound(region.low, "low"), None if region.high is None else _bound(region.high, "high")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise ValueError(f"`high` must not be below `low` = {low}; got {high}. Equal bounds hold no pair.")
    return Band(_key(region.q_key, "q", request.q, request), _key(region.kv_key, "kv", request.k, request), low, high)


def _bound(value: Any, argument: str) -> Any:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    if not hasattr(value, "dtype") or value.ndim or not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"`{argument}` must be an integer or an int32 scalar; got {value!r}. Keys are integers.")
    return value.astype(jnp.int32)


def _key(key: Any, side: str, x: Float[Array, "batch seq heads dim"], request: Request) -> Array:
    if key is None:
        # The call masks padding; here it must not go below 0.
        with jax.ensure_compile_time_eval():
            return jnp.maximum(request.q_positions if side == "q" else request.kv_positions, 0)
    with jax.ensure_compile_time_eval():
        key = check_per_token(key, f"{side}_key", x)
    if not is_traced(key) and np.asarray(key).min() < 0:
        raise ValueError(
            f"`{side}_key` must not be negative, so that differences stay within int32; got {np.asarray(key).min()}. "
            "Add a constant to the keys of both sides."
        )
    return key


def _check_apart(regions: Sequence[Region], bands: Sequence[Band], request: Request) -> None:
    """No visible pair lies in two regions, where that can be known."""
    for one in range(len(regions)):
        for other in range(one):
            a, b = bands[one], bands[other]
            common = all(getattr(regions[one], k) is getattr(regions[other], k) for k in ("q_key", "kv_key"))
            bounds = (a.low, a.high, b.low, b.high)
            if common and all(bound is None or isinstance(bound, int) for bound in bounds):
                low, high = max(a.low, b.low), min(_end(a), _end(b))
                if low < high:
                    raise ValueError(_overlap(other, one, f"key differences from {low} on"))
            elif _known(a, b, request):
                with jax.ensure_compile_time_eval():
                    twice = np.argwhere(np.asarray(visibility(request)) & _inside(a) & _inside(b))
                if twice.size:
                    raise ValueError(_overlap(other, one, "row {}, query {}, key {}".format(*twice[0])))


def _end(band: Band) -> int:
    return 2**31 if band.high is None else int(band.high)


def _known(a: Band, b: Band, request: Request) -> bool:
    pairs = request.q.shape[0] * request.q.shape[1] * request.k.shape[1]
    tokens = (request.q_positions, request.kv_positions, request.q_segments, request.kv_segments, request.window)
    return pairs <= CHECKED_PAIRS and not any(is_traced(x) for x in (*a, *b, *tokens))


def _inside(band: Band) -> Bool[np.ndarray, "rows q kv"]:
    return np.asarray(band.holds(band.q_keys[:, :, None] - band.kv_keys[:, None, :]))


def _overlap(first: int, second: int, where: str) -> str:
    return (
        f"`regions` must not overlap, since a pair in two would count twice; got regions {first} and {second} with "
        f"{where} in both. Let `high` of one be `low` of the next."
    )

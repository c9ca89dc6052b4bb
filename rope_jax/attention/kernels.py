"""What the kernels that jax ships for accelerators have in common: where they run, and masks by index alone.

Such a kernel knows a token by its index. `order` promises that inside a segment the index says who comes first
("increasing") and how far apart two tokens are ("contiguous"); all else about positions is out of its sight.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Int32

from rope_jax.attention.base import Request, sees, unusable
from rope_jax.positions import is_traced


def beyond_index(request: Request) -> str | None:
    """What a mask by index cannot say, or a kernel cannot be told, as the end of a sentence."""
    if request.order == "any":
        return 'its mask goes by index, which needs order="increasing" or "contiguous"'
    if request.q.shape[1] * (1 if request.shard is None else request.shard.number) != request.k.shape[1]:
        return "its mask goes by index, which needs queries and keys that are the same tokens"
    if is_traced(request.window):
        return "its mask is fixed when the program is compiled, so it needs a `window` that is known then"
    if request.window is not None and request.order != "contiguous":
        return 'a window counts positions, and only order="contiguous" makes them steps of the index'
    if request.slopes is not None:
        return "it has no logit that falls with the distance, as slopes ask"
    if request.band is not None:
        return "its log-sum-exp carries no gradient, and regions are merged by theirs"
    return None


def beyond_program(request: Request) -> str | None:
    """Why no kernel can be part of the program that is being built, as the end of a sentence."""
    if (devices(request) or 1) > 1:
        return "a kernel is not divided among devices by the compiler; call attend inside jax.shard_map"
    alike = jnp.zeros((), request.q.dtype)
    if jax.typeof(jnp.zeros_like(request.q, shape=())) != jax.typeof(alike):
        return "inside jax.shard_map a kernel needs check_vma=False"
    return None


def platform(request: Request) -> str:
    """Where the call will run: "cpu", "gpu" or "tpu"."""
    if not is_traced(request.q):
        return str(next(iter(request.q.devices())).platform)
    mesh = jax.sharding.get_abstract_mesh()
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    # A mesh may be of devices that this machine has not got: programs are compiled for them all the same.
    for device in (None if mesh.empty else mesh.abstract_device, default):
        if device is not None:
            return str(getattr(device, "platform", device))
    return jax.default_backend()


def devices(request: Request) -> int | None:
    """Among how many devices the compiler divides the call; None where only the compiler knows."""
    if not is_traced(request.q):
        return len(request.q.devices())
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1 if jax.device_count() == 1 else None
    number = 1
    for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True):
        number *= 1 if kind == AxisType.Manual else size
    return number


def compute_capability() -> tuple[int, ...] | None:
    """Generation of the NVIDIA GPU, such as (9, 0); None for another maker's, or none at all."""
    gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
    version = str(getattr(gpus[0], "compute_capability", "")) if gpus else ""
    numbers = version.split(".")
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else None


def padding_known_absent(request: Request) -> bool:
    """Whether the positions say already now that every token is real, and there are no segments."""
    known = request.q_segments is None and not is_traced(request.q_positions)
    return known and bool(np.all(np.asarray(request.q_positions) >= 0))


def spoiled_rows(
    request: Request, segments: Int32[Array, "rows q"], kv_segments: Int32[Array, "rows kv"]
) -> Bool[Array, "batch q"]:
    """Which rows see a NaN or an infinity, or hold one; segments are 0 for padding.

    Searched, query by query, only where there is such a token at all.
    """
    bad = (unusable(request.k) | unusable(request.v)) & (kv_segments != 0)
    bad_q = unusable(request.q) & (segments != 0)
    queries = [jnp.broadcast_to(x, bad_q.shape).T for x in (request.q_positions, segments)]
    keys = [
        jnp.broadcast_to(x, bad.shape) for x in (jnp.where(kv_segments != 0, request.kv_positions, -1), kv_segments)
    ]

    def search(bad: Array) -> Array:
        def sees_bad(token: tuple[Array, Array]) -> Array:
            position, segment = (x[:, None] for x in token)
            seen = sees(position, keys[0], request.window, segment == keys[1])
            return jnp.any(seen & bad, axis=1)

        return jax.lax.map(sees_bad, tuple(queries), batch_size=128).T & (segments != 0)

    seen = jax.lax.cond(jnp.any(bad), search, lambda bad: jnp.zeros_like(bad_q), bad)
    return seen | bad_q


def cleaned(
    request: Request, segments: Int32[Array, "rows q"], kv_segments: Int32[Array, "rows kv"]
) -> tuple[Array, Array, Array]:
    """q, k and v in float32 with padding and unusable tokens zeroed, and no gradient passed on to those."""
    dropped = (kv_segments == 0) | unusable(request.k) | unusable(request.v)
    q_dropped = (segments == 0) | unusable(request.q)
    sides = ((request.q, q_dropped), (request.k, dropped), (request.v, dropped))
    q, k, v = (jnp.where(drop[..., None, None], 0.0, x.astype(jnp.float32)) for x, drop in sides)
    return q, k, v


def without_gradient(function: Callable[..., Array], *operands: Any) -> Array:
    """`function(*operands)`, for a result that a kernel gives no gradient of: asking for one raises."""

    def forward(*operands: Any) -> tuple[Array, None]:
        return function(*operands), None

    def backward(_: None, cotangent: Array) -> Any:
        raise NotImplementedError(
            "the log-sum-exp of a kernel must not be differentiated; got a request for its gradient. "
            'Use backend="chunked".'
        )

    guarded = jax.custom_vjp(function)
    guarded.defvjp(forward, backward)
    return guarded(*operands)

"""Attention in blocks beside `jax.nn.dot_product_attention`: time at growing lengths, memory at long ones, packed rows.

    python scripts/bench_attention.py
    python scripts/bench_attention.py --shards 8
    python scripts/bench_attention.py --lengths 64 --memory-lengths 128 --packed 256 --rounds 2

Causal attention of one row, float32. Both forms are compiled beforehand and run in turns, so that a slow moment of the
machine hits them alike; the ratio is the median over the rounds. Memory is what the compiler sets aside for
temporaries. Packed: one row of four documents beside one document of the same length. With `--shards` nothing is run:
memory of a device where a row is divided over so many, all-gather beside ring. The last line is JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import rope_jax as rj
from rope_jax.attention import Sharding, attend_sharded
from rope_jax.parallel import MeshShape, make_mesh

Form = Callable[..., jax.Array]
DIRECTIONS = ("forward", "forward + backward")
DOCUMENTS = 4


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times attention in blocks against jax.nn, and weighs its memory.")
    parser.add_argument("--heads", type=int, default=8, help="default 8")
    parser.add_argument("--head-dim", type=int, default=64, help="default 64")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096], help="timed beside jax.nn")
    parser.add_argument("--memory-lengths", type=int, nargs="+", default=[16384, 32768], help="weighed, not run")
    parser.add_argument("--packed", type=int, default=8192, help="tokens of the row of documents; default 8192")
    parser.add_argument("--shards", type=int, default=1, help="simulated devices that a row is divided over; default 1")
    parser.add_argument("--divided", type=int, default=16384, help="tokens of the divided row; default 16384")
    return parser.parse_args(words)


def chunked(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array | None) -> jax.Array:
    at: dict[str, Any] = {"q_positions": positions, "kv_positions": positions}
    return rj.attend(q, k, v, **at, q_segments=segments, kv_segments=segments, backend="chunked")


def whole(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array | None) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def directed(form: Form, direction: str) -> Form:
    """The form itself, or its gradients by q, k and v."""
    if direction == "forward":
        return form
    return jax.grad(lambda q, k, v, *tokens: jnp.sum(form(q, k, v, *tokens) ** 2), argnums=(0, 1, 2))


def operands(sizes: argparse.Namespace, length: int) -> list[jax.Array]:
    """q, k, v and the positions of one row."""
    shape = (1, length, sizes.heads, sizes.head_dim)
    draws = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    return [*map(jnp.asarray, draws), jnp.arange(length, dtype=jnp.int32)[None]]


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every call in every round."""
    for call in calls.values():
        jax.block_until_ready(call())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def compared(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians of the two calls, and that of the ratio of the first to the second."""
    times = in_turns(calls, rounds)
    first, second = calls
    ratio = statistics.median(a / b for a, b in zip(times[first], times[second], strict=True))
    return {f"{name} ms": statistics.median(each) for name, each in times.items()} | {"ratio": ratio}


def timed(sizes: argparse.Namespace, length: int, direction: str) -> dict[str, Any]:
    """Blocks against the whole matrix."""
    args = operands(sizes, length)
    calls: dict[str, Callable[[], Any]] = {
        name: partial(jax.jit(directed(form, direction)), *args, None)
        for name, form in (("chunked", chunked), ("jax.nn", whole))
    }
    return {"length": length, "direction": direction} | compared(calls, sizes.rounds)


def packed(sizes: argparse.Namespace, direction: str) -> dict[str, Any]:
    """Four documents in a row against one as long as the row."""
    length = sizes.packed
    *heads, positions = operands(sizes, length)
    segments = jnp.arange(length, dtype=jnp.int32)[None] // -(-length // DOCUMENTS) + 1
    one = jnp.ones_like(segments)
    attention = jax.jit(directed(chunked, direction))
    calls: dict[str, Callable[[], Any]] = {
        "four documents": partial(attention, *heads, rj.packed_positions(segments), segments),
        "one document": partial(attention, *heads, positions, one),
    }
    return {"length": length, "direction": direction} | compared(calls, sizes.rounds)


def weighed(sizes: argparse.Namespace, length: int, direction: str) -> dict[str, Any]:
    """MiB of temporaries of `chunked`."""
    shape = jax.ShapeDtypeStruct((1, length, sizes.heads, sizes.head_dim), jnp.float32)
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    program = jax.jit(directed(chunked, direction)).lower(shape, shape, shape, tokens, None).compile()
    memory: Any = program.memory_analysis()
    return {"length": length, "direction": direction, "temporary MiB": memory.temp_size_in_bytes / 2**20}


def divided(sizes: argparse.Namespace, form: str, direction: str) -> dict[str, Any]:
    """MiB of temporaries of a device that holds one part of a row."""
    length, sharding = sizes.divided, Sharding(form=form)  # type: ignore[arg-type]  # one of two words
    place = jax.sharding.PartitionSpec(None, "context")
    tokens: dict[str, Any] = dict.fromkeys(("q_positions", "kv_positions"), jnp.arange(length, dtype=jnp.int32)[None])

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend_sharded(q, k, v, **tokens, sharding=sharding, backend="chunked")

    shape = jax.ShapeDtypeStruct((1, length, sizes.heads, sizes.head_dim), jnp.float32)
    with jax.set_mesh(make_mesh(MeshShape(context=sizes.shards))):
        jitted = jax.jit(directed(attention, direction), in_shardings=place, out_shardings=place)
        memory: Any = jitted.lower(shape, shape, shape).compile().memory_analysis()
    return {"form": form, "direction": direction, "temporary MiB": memory.temp_size_in_bytes / 2**20}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    Console().print(table)


def main(words: list[str] | None = None) -> None:
    sizes = parse(words)
    if sizes.shards > 1:
        # Before anything uses a device; their number is fixed from then on.
        jax.config.update("jax_num_cpu_devices", sizes.shards)
        title = f"memory of a device, a row of {sizes.divided} tokens over {sizes.shards}"
        parts = {title: [divided(sizes, form, way) for way in DIRECTIONS for form in ("all_gather", "ring")]}
    else:
        parts = measured(sizes)
    for title, rows in parts.items():
        show(title, rows)
    device = jax.devices()[0]
    facts = {"device": f"{device.platform} {device.device_kind}", "jax": version("jax"), "sizes": vars(sizes)}
    print(json.dumps(facts | parts))


def measured(sizes: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What one device is timed and weighed at."""
    return {
        "chunked beside jax.nn": [timed(sizes, n, way) for way in DIRECTIONS for n in sizes.lengths],
        "memory of chunked": [weighed(sizes, n, way) for way in DIRECTIONS for n in sizes.memory_lengths],
        "four packed documents beside one": [packed(sizes, way) for way in DIRECTIONS],
    }


if __name__ == "__main__":
    main()

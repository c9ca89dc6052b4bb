"""The cost of rotation next to a copy and to the usual ways of writing it, and of the compilation that methods share.

    python scripts/bench.py
    python scripts/bench.py --seq 64 --heads 4 --kv-heads 2 --head-dim 32 --rounds 2 --windows 2

Every form is compiled and run once beforehand; then the rounds go through all forms in turn, so that a slow moment of
the machine hits them alike, and the median over the rounds counts. The sweep scores twelve schedules with the decoder
of configs/quickstart.toml at 512 tokens, from an empty compile cache, then again. The last line is one JSON object.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console
from rich.table import Table

import rope_jax as rj
from rope_jax.experiment.config import load_config
from rope_jax.experiment.evaluate import score, scoring_step
from rope_jax.experiment.model import group_schedules, make_decoder
from rope_jax.layout import Layout

Form = Callable[[jax.Array, jax.Array, rj.RotaryTable, jax.Array], Any]

COPY = "copy"
FORMS = (COPY, "rotate", "table + rotate", "table + rotate, float32 phase", "concatenate", "rotate-half")
DTYPES = ("float32", "bfloat16")
LAYOUTS = ("half", "interleaved")


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times rotate, and table + rotate, against a copy and usual forms.")
    sizes = {"batch": 1, "seq": 4096, "heads": 32, "kv-heads": 8, "head-dim": 128, "rounds": 15, "windows": 48}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    chosen = parser.parse_args(words)
    for name in sizes:
        if getattr(chosen, name.replace("-", "_")) < 1:
            parser.error(f"`--{name}` must be at least 1")
    if chosen.head_dim % 2:
        parser.error(f"`--head-dim` must be even; got {chosen.head_dim}")
    return chosen


def forms(layout: Layout, schedule: rj.FrequencySchedule) -> dict[str, Form]:
    """Every form as a function of (q, k, table, positions) that gives the rotated pair."""

    def made(phase: Literal["exact", "float32"]) -> Form:
        def run(q, k, table, positions):
            own = rj.rotary_table(schedule, positions, phase=phase)
            return rj.rotate(q, own, layout=layout), rj.rotate(k, own, layout=layout)

        return run

    def each(turn: Callable) -> Form:
        return lambda q, k, table, positions: (turn(q, table), turn(k, table))

    return {
        COPY: each(lambda x, table: jnp.copy(x)),
        "rotate": each(lambda x, table: rj.rotate(x, table, layout=layout)),
        "table + rotate": made("exact"),
        "table + rotate, float32 phase": made("float32"),
        "concatenate": each(lambda x, table: joined(x, table, layout)),
        "rotate-half": each(lambda x, table: rotate_half(x, table, layout)),
    }


def parts(x: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
    """The first and the second channel of every pair, float32."""
    wide = x.astype(jnp.float32)
    half = x.shape[-1] // 2
    return (wide[..., :half], wide[..., half:]) if layout == "half" else (wide[..., ::2], wide[..., 1::2])


def together(first: jax.Array, second: jax.Array, layout: Layout) -> jax.Array:
    """Pairs back in their places."""
    if layout == "half":
        return jnp.concatenate([first, second], axis=-1)
    return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)


def joined(x: jax.Array, table: rj.RotaryTable, layout: Layout) -> jax.Array:
    """Each half on its own, then put together."""
    first, second = parts(x, layout)
    cos, sin = table.cos[..., None, :], table.sin[..., None, :]
    return together(first * cos - second * sin, second * cos + first * sin, layout).astype(x.dtype)


def rotate_half(x: jax.Array, table: rj.RotaryTable, layout: Layout) -> jax.Array:
    """x cos + rotate_half(x) sin, with cos and sin spread over the whole head."""
    first, second = parts(x, layout)
    cos, sin = (together(t, t, layout)[..., None, :] for t in (table.cos, table.sin))
    return (x.astype(jnp.float32) * cos + together(-second, first, layout) * sin).astype(x.dtype)


def measure(sizes: argparse.Namespace, dtype: str, layout: Layout) -> list[dict[str, Any]]:
    """Median milliseconds of every form."""
    draw = jax.random.split(jax.random.key(0))
    q = jax.random.normal(draw[0], (sizes.batch, sizes.seq, sizes.heads, sizes.head_dim), dtype)
    k = jax.random.normal(draw[1], (sizes.batch, sizes.seq, sizes.kv_heads, sizes.head_dim), dtype)
    positions = jnp.arange(sizes.seq, dtype=jnp.int32)[None]
    schedule = rj.geometric_schedule(sizes.head_dim)
    operands = (q, k, jax.jit(rj.rotary_table)(schedule, positions), positions)
    compiled = {name: jax.jit(form) for name, form in forms(layout, schedule).items()}
    wanted = jax.block_until_ready(compiled["rotate"](*operands))
    for name, form in compiled.items():
        result = jax.block_until_ready(form(*operands))
        if name != COPY:
            check(name, result, wanted)
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    for _ in range(sizes.rounds):
        for name in FORMS:
            start = time.perf_counter()
            jax.block_until_ready(compiled[name](*operands))
            times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [
        {"form": name, "dtype": dtype, "layout": layout, "median_ms": ms, "times_copy": ms / medians[COPY]}
        for name, ms in medians.items()
    ]


def check(name: str, result: tuple[jax.Array, ...], wanted: tuple[jax.Array, ...]) -> None:
    """A form that computes something else is not worth timing."""
    for ours, theirs in zip(result, wanted, strict=True):
        away = float(jnp.max(jnp.abs(ours.astype(jnp.float32) - theirs.astype(jnp.float32))))
        # The float32 phase alone is off by some 1e-4 radians at the end of 4096 positions.
        if away > (1e-2 if ours.dtype == jnp.float32 else 1e-1):
            raise RuntimeError(f"{name!r} must rotate as `rotate` does; got a difference of {away:.3g}.")


def sweep(windows: int) -> dict[str, float]:
    """Seconds to score twelve schedules on `windows` windows of 512 tokens, with the compilation and without."""
    config = load_config(Path(__file__).parents[1] / "configs" / "quickstart.toml")
    graphdef, params = nnx.split(make_decoder(config, vocab=256, seed=0))
    step = scoring_step(graphdef, config.evaluate.loss_chunk)
    tokens = np.random.default_rng(0).integers(0, 256, (windows, 513), dtype=np.int32)
    methods: list[rj.FrequencyTransform] = [rj.NTKAware(factor=float(f)) for f in range(1, 7)]
    methods += [rj.YaRN(factor=float(f), original_length=64, beta_fast=4.0) for f in range(1, 7)]
    schedules = [group_schedules(config, method, length=512) for method in methods]
    seconds = []
    for _ in ("cold", "warm"):
        start = time.perf_counter()
        for schedule in schedules:
            score(step, params, schedule, tokens, rows=min(windows, config.evaluate.batch))
        seconds.append(time.perf_counter() - start)
    return {"windows": windows, "cold_s": seconds[0], "warm_s": seconds[1], "cold_over_warm": seconds[0] / seconds[1]}


def show(results: list[dict[str, Any]], sizes: argparse.Namespace) -> None:
    shapes = [f"[{sizes.batch}, {sizes.seq}, {heads}, {sizes.head_dim}]" for heads in (sizes.heads, sizes.kv_heads)]
    table = Table("dtype", "layout", "form", title=f"q {shapes[0]}, k {shapes[1]}, median of {sizes.rounds}")
    table.add_column("ms", justify="right")
    table.add_column("x copy", justify="right")
    for row in results:
        table.add_row(row["dtype"], row["layout"], row["form"], f"{row['median_ms']:.2f}", f"{row['times_copy']:.2f}")
    Console().print(table)


def main(words: list[str] | None = None) -> None:
    sizes = parse(words)
    results = [row for dtype in sizes.dtypes for layout in sizes.layouts for row in measure(sizes, dtype, layout)]
    show(results, sizes)
    shared = sweep(sizes.windows)
    print(
        "twelve schedules, {windows} windows of 512 tokens: {cold_s:.1f} s with the compilation".format(**shared),
        end="",
    )
    print(", {warm_s:.1f} s without, {cold_over_warm:.2f} times".format(**shared))
    device = jax.devices()[0]
    facts = {"device": f"{device.platform} {device.device_kind}", "jax": version("jax"), "sizes": vars(sizes)}
    print(json.dumps(facts | {"results": results, "sweep": shared}))


if __name__ == "__main__":
    main()

"""What a compiled program costs, for readers and for programs."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rope_jax.experiment.tpu.compiling import Compiled
from rope_jax.experiment.tpu.figures import Figures
from rope_jax.experiment.tpu.topologies import GIB, Chip, Topology

FORM = 1  # grows when a key changes its meaning


def as_table(compiled: Compiled) -> RenderableType:
    """Everything about one chip, with how it is counted."""
    topology, chip = compiled.topology, compiled.topology.chip
    mesh = " x ".join(f"{axis} {size}" for axis, size in compiled.mesh.items()) or "one device"
    title = Text(
        f"{compiled.name}, {compiled.what} of stage {compiled.stage!r}: {compiled.rows} rows of {compiled.length} "
        f"tokens\ncompiled for {topology.name}, {_plural(topology.chips, 'chip')}: {mesh}"
    )
    took = f"lowered in {compiled.lower_seconds:.0f} s, compiled in {compiled.compile_seconds:.0f} s"
    if compiled.figures is None:
        needed = "more than it has" if compiled.needed is None else _size(compiled.needed)
        available = "" if compiled.available is None else f", of which the compiler may use {_size(compiled.available)}"
        return Group(title, Text(f"does not fit: {needed} on a chip with {_size(chip.hbm)}{available}; {took}"))
    parts = [
        title,
        *(_filled(name, lines) for name, lines in _parts(compiled.figures, chip).items()),
        *_notes(compiled),
    ]
    return Group(*parts, Text(took))


def _parts(figures: Figures, chip: Chip) -> dict[str, list[tuple[str, str, str]]]:
    """Title -> lines of (what, how much, beside what)."""
    memory = figures.memory
    hbm, every = figures.hbm_bytes, figures.bytes
    fused = f"rotates among other things, {_size(hbm.among)} of HBM: most of it not the rotation's"
    rates = f"{chip.flops / 1e12:.0f} TFLOP/s, {chip.bandwidth / 1e12:.3f} TB/s"
    estimate = f"{_count(figures.cycles)} cycles by the compiler, attention kernels at the peak, no collectives"
    return {
        "memory of a chip": [
            ("arguments", _size(memory.arguments), "state, schedules and batch"),
            ("outputs", _size(memory.outputs), f"of which {_size(memory.aliased)} in place of donated arguments"),
            ("temporaries", _size(memory.temporaries), "at their most"),
            ("generated code", _size(memory.code), ""),
            ("all at once", _size(memory.total), f"{_share(memory.total, chip.hbm)} of {_size(chip.hbm)}"),
        ],
        "work of a chip": [
            ("FLOPs", _count(figures.flops), f"matrix products; {_count(figures.kernel_flops)} in attention kernels"),
            (
                "bytes",
                _size(every.whole),
                f"read and written, of which {_size(hbm.whole)} of HBM; loops by their trips",
            ),
            (
                "rotation",
                _share(every.rotation, every.whole),
                f"of all bytes; {_share(hbm.rotation, hbm.whole)} of HBM's",
            ),
            ("fused rotation", _size(every.among), fused),
            *((f"kernel {name}", f"{count} x", "") for name, count in figures.kernels.items()),
        ],
        "time": [
            ("at least", _seconds(figures.least_seconds(chip)), f"FLOPs, or bytes of HBM, at {rates}"),
            ("estimated", _seconds(figures.estimated_seconds(chip)), estimate),
            (
                "optimal_seconds",
                f"{figures.optimal_seconds:.6g}",
                "the compiler's sum: loops once, -1 for every kernel",
            ),
        ],
        "collectives": [
            (one.kind, f"{one.count} x", _size(one.bytes) + ("" if one.certain else ", some loops counted once"))
            for one in figures.collectives
        ],
    }


def _filled(name: str, lines: Sequence[tuple[str, str, str]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    table.add_column(name, min_width=20)
    table.add_column("", justify="right", min_width=12)
    table.add_column("")
    for line in lines or [("none", "", "")]:
        table.add_row(*line)
    return Group(Text(), table)


def _notes(compiled: Compiled) -> list[RenderableType]:
    notes: list[RenderableType] = [Text()]
    if compiled.figures is not None and not compiled.figures.certain:
        notes.append(Text("note: the trips of some loops are not known; their bodies are counted once"))
    if not compiled.fits:
        notes.append(Text("does not fit the memory of a chip"))
    return notes


def topology_table(known: Sequence[Topology]) -> RenderableType:
    """The slices that can be compiled for."""
    table = Table(box=None, pad_edge=False)
    table.add_column("topology")
    for name in ("chips", "HBM of a chip", "of all", "bfloat16 FLOP/s", "bandwidth"):
        table.add_column(name, justify="right")
    for one in known:
        chip = one.chip
        table.add_row(
            *(one.name, str(one.chips), _size(chip.hbm), _size(chip.hbm * one.chips)),
            *(f"{chip.flops / 1e12:.0f}e12", f"{chip.bandwidth / 1e9:.0f} GB/s"),
        )
    return table


def as_json(compiled: Compiled) -> dict[str, Any]:
    """All figures, in bytes and seconds; null for what is not known."""
    figures, chip = compiled.figures, compiled.topology.chip
    plain: dict[str, Any] = {
        "form": FORM,
        **{name: getattr(compiled, name) for name in ("name", "what", "stage", "mesh", "rows", "length", "fits")},
        "topology": compiled.topology.name,
        "chips": compiled.topology.chips,
        "hbm": chip.hbm,
        **{name: getattr(compiled, name) for name in ("needed", "available", "lower_seconds", "compile_seconds")},
    }
    if figures is None:
        return plain | {"memory": None}
    memory = figures.memory
    names = ("flops", "kernel_flops", "cycles", "kernels", "certain")
    moved = {"bytes": figures.bytes, "hbm_bytes": figures.hbm_bytes}
    return plain | {
        "memory": {
            name: getattr(memory, name) for name in ("arguments", "outputs", "aliased", "temporaries", "code", "total")
        },
        **{name: getattr(figures, name) for name in names},
        **{name: traffic._asdict() for name, traffic in moved.items()},
        "rotation_share": {
            name: traffic.rotation / traffic.whole if traffic.whole else None for name, traffic in moved.items()
        },
        "least_seconds": figures.least_seconds(chip),
        "estimated_seconds": figures.estimated_seconds(chip),
        "compiler_once": {
            "optimal_seconds": figures.optimal_seconds,
            "flops": figures.once_flops,
            "bytes_accessed": figures.once_bytes,
        },
        "collectives": {
            one.kind: {"count": one.count, "bytes": one.bytes, "certain": one.certain} for one in figures.collectives
        },
    }


def _size(number: float) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f} B"


def _count(number: float) -> str:
    return f"{number:.3g}" if number else "0"


def _seconds(number: float | None) -> str:
    if number is None:
        return "not known"
    return f"{number:.3g} s" if number >= 1 else f"{number * 1e3:.3g} ms"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2g} %" if whole else "nothing"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

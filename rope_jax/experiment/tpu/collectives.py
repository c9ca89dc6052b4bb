"""What devices say to each other in a compiled program: collectives by kind, how often, and how large."""

from collections.abc import Iterable
from dataclasses import dataclass

from rope_jax.experiment.tpu.hlo import Instruction, Program
from rope_jax.experiment.tpu.trips import Run

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind in one run of the program.

    Attributes:
      kind: one of `KINDS`.
      count: how often one is started.
      bytes: what one device holds of them, the larger of operand and result: of an all-gather the gathered whole, of a
        reduce-scatter what goes in.
      certain: False where some stand in a loop whose trips the program does not tell, counted as one.
    """

    kind: str
    count: int
    bytes: int
    certain: bool


def collectives(program: Program, runs: Iterable[Run]) -> tuple[Collective, ...]:
    """By kind, in the order of `KINDS`; kinds that do not occur are left out."""
    found: dict[str, list[tuple[Run, int]]] = {}
    for run in runs:
        for kind, size in _started(program, run.computation, run.instruction):
            found.setdefault(kind, []).append((run, size))
    return tuple(
        Collective(
            kind,
            count=sum(run.times for run, _ in found[kind]),
            bytes=sum(run.times * size for run, size in found[kind]),
            certain=all(run.certain for run, _ in found[kind]),
        )
        for kind in KINDS
        if kind in found
    )


def _started(program: Program, computation: str, instruction: Instruction) -> Iterable[tuple[str, int]]:
    """(kind, bytes) of what an instruction starts; the "-done" that ends it counts for nothing."""
    if instruction.opcode == "fusion":
        inside = instruction.calls["calls"]
        # A fusion may hold an all-reduce of which every device keeps its part: a reduce-scatter.
        scattered = "reduce-scatter" in inside
        for line in program.computations[inside].values():
            for kind, size in _started(program, inside, line):
                yield ("reduce-scatter" if scattered and kind == "all-reduce" else kind), size
        return
    kind = instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        operands = sum(operand.bytes for operand in program.operands(computation, instruction))
        # The result of a start is (operands, results, flags): its largest array is the one that counts.
        results = instruction.bytes if kind == instruction.opcode else max(s.bytes for s in instruction.shapes)
        yield kind, max(operands, results)

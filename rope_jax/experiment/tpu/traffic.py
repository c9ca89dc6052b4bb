"""Bytes that the instructions of a compiled program read and write, and which of them the rotation causes."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rope_jax.experiment.tpu.hlo import Instruction, Program
from rope_jax.experiment.tpu.trips import Run

# They hand on what is there, or only hold what runs inside.
_FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call"),
    *("after-all", "partition-id", "replica-id", "optimization-barrier", "iota"),
)
_SLICES = ("dynamic-slice", "slice", "gather")
_ROTATION = ("rope_jax/rotation.py:", "rope_jax/table.py:", "rope_jax/phase.py:")


class Traffic(NamedTuple):
    """Bytes read and written, loops by their trips.

    Attributes:
      whole: by every instruction.
      rotation: by those that only rotate.
      among: by those that rotate among other things. It is no share of the rotation: a matrix product that rotates
        what it writes would move its bytes without any rotation.
    """

    whole: int
    rotation: int
    among: int


def traffic(program: Program, runs: Iterable[Run], *, on_chip: bool) -> Traffic:
    """Operands and results of every instruction.

    A slice counts as what it takes or writes, in a fusion too; what a kernel written by hand reads more than once
    counts once. An instruction rotates where its lines were written in `rotate`, `unrotate` or `rotary_table`,
    forwards or backwards: so the program says, which keeps the stack of every line.

    Args:
      program: the program.
      runs: of its instructions.
      on_chip: count what lies in the small memories on the chip too; otherwise only what passes to and from HBM.
    """
    whole = rotation = among = 0
    for run in runs:
        moved = run.times * _moved(program, run.computation, run.instruction, on_chip)
        written = [_rotates(program, line) for line in _lines(program, run.instruction)] if moved else []
        whole += moved
        rotation += moved if written and all(written) else 0
        among += moved if any(written) and not all(written) else 0
    return Traffic(whole, rotation, among)


def _lines(program: Program, instruction: Instruction) -> Iterator[Instruction]:
    """What computes in an instruction: itself, or the lines of a fusion that say where they were written."""
    if instruction.opcode != "fusion":
        yield instruction
        return
    for line in program.computations[instruction.calls["calls"]].values():
        if line.opcode == "fusion":
            yield from _lines(program, line)
        elif line.opcode not in _FREE and line.frame is not None:
            yield line


def _rotates(program: Program, instruction: Instruction) -> bool:
    return any(mark in place for place in program.written_in(instruction) for mark in _ROTATION)


def _moved(program: Program, computation: str, instruction: Instruction, on_chip: bool) -> int:
    if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
        return 0
    operands = program.operands(computation, instruction)
    own = _size(instruction, on_chip)
    if instruction.opcode.endswith("-start"):
        return own  # result, operand and flags in one tuple
    if instruction.opcode == "fusion":
        inside = instruction.calls["calls"]
        parameters = {
            int(line.literal): line for line in program.computations[inside].values() if line.opcode == "parameter"
        }
        reads = sum(
            min(_size(operand, on_chip), _read(program, inside, parameters[place]))
            for place, operand in enumerate(operands)
            if place in parameters
        )
        return reads + _written(program, inside, instruction, on_chip)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * min(operands[1].bytes, own)
    if instruction.opcode in _SLICES:
        return own + min(_size(operands[0], on_chip), instruction.bytes)
    return sum(_size(operand, on_chip) for operand in operands) + own


def _size(instruction: Instruction, on_chip: bool) -> int:
    return sum(shape.bytes for shape in instruction.shapes if on_chip or shape.space == 0)


def _read(program: Program, computation: str, parameter: Instruction) -> int:
    """What a fusion reads of one of its parameters: only slices, where slices are all it takes."""
    read = 0
    for user in program.computations[computation].values():
        if parameter.name not in user.operands:
            continue
        first = user.operands[0] == parameter.name
        if user.opcode == "bitcast":
            read += _read(program, computation, user)
        elif user.opcode in _SLICES and first:
            read += user.bytes
        elif user.opcode == "fusion":
            inside = user.calls["calls"]
            place = user.operands.index(parameter.name)
            inner = [line for line in program.computations[inside].values() if line.opcode == "parameter"]
            read += sum(_read(program, inside, line) for line in inner if int(line.literal) == place)
        elif user.opcode != "dynamic-update-slice" or not first:
            return parameter.bytes
    return min(read, parameter.bytes)


def _written(program: Program, computation: str, fusion: Instruction, on_chip: bool) -> int:
    """What a fusion writes: of an array that it updates in place, the update."""
    root = program.root(computation)
    results = program.operands(computation, root) if root.opcode == "tuple" else (root,)
    if len(results) != len(fusion.shapes):
        return _size(fusion, on_chip)
    return sum(
        _updated(program, computation, result) if on_chip or shape.space == 0 else 0
        for result, shape in zip(results, fusion.shapes, strict=True)
    )


def _updated(program: Program, computation: str, result: Instruction) -> int:
    while result.opcode == "bitcast":
        result = program.operands(computation, result)[0]
    if result.opcode == "dynamic-update-slice":
        return program.operands(computation, result)[1].bytes
    return result.bytes

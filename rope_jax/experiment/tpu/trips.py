"""How often the instructions of a compiled program run: loops by their trips, of branches the dearest."""

from collections.abc import Iterator
from dataclasses import dataclass

from rope_jax.experiment.tpu.hlo import Instruction, Program

_PASSED = ("copy", "bitcast", "convert", "reshape", "copy-start", "copy-done", "optimization-barrier")
_INLINED = ("call", "async-start")


@dataclass(frozen=True)
class Run:
    """An instruction outside every fusion, and how often it runs.

    Attributes:
      computation: where it stands.
      instruction: the instruction.
      times: of the loops around it, multiplied.
      certain: False inside a loop whose trips the program does not tell; one is counted.
    """

    computation: str
    instruction: Instruction
    times: int
    certain: bool


def runs(program: Program) -> tuple[Run, ...]:
    """Every instruction that runs, from the entry on; fusions and what they hold are one instruction."""
    return tuple(_walk(program, program.entry, 1, True, {}))


def _walk(
    program: Program, computation: str, times: int, certain: bool, loops: dict[str, tuple[str, Instruction]]
) -> Iterator[Run]:
    """`loops`: body -> (the computation, the instruction) that runs it, of the loops around."""
    for instruction in program.computations[computation].values():
        yield Run(computation, instruction, times, certain)
        called = instruction.calls
        if instruction.opcode == "while":
            body = called["body"]
            inner = {**loops, body: (computation, instruction)}
            trips = loop_trips(program, instruction, computation, loops)
            known = certain and trips is not None
            for name in (body, called["condition"]):
                yield from _walk(program, name, times * (1 if trips is None else trips), known, inner)
        elif instruction.opcode == "conditional":
            branches = [list(_walk(program, name, times, certain, loops)) for name in called.values()]
            yield from max(branches, key=_weight)
        elif instruction.opcode in _INLINED:
            for name in called.values():
                yield from _walk(program, name, times, certain, loops)


def _weight(branch: list[Run]) -> int:
    return sum(run.times * run.instruction.bytes for run in branch)


def loop_trips(
    program: Program, loop: Instruction, computation: str, loops: dict[str, tuple[str, Instruction]] | None = None
) -> int | None:
    """How often the body of a `while` runs: as its condition compares a counter with a constant, or None.

    Args:
      program: the program.
      loop: the `while`.
      computation: where it stands.
      loops: of the bodies around it, what runs them.
    """
    marked = loop.rest.partition('"known_trip_count":{"n":"')[2].partition('"')[0]
    if marked.isdecimal():
        return int(marked)
    condition, body = loop.calls["condition"], loop.calls["body"]
    around = {**(loops or {}), body: (computation, loop)}
    compared = _comparison(program, condition)
    if compared is None:
        return None
    direction, sides = compared
    bounds = [_number(program, condition, side, {**around, condition: (computation, loop)}, body) for side in sides]
    counters = [_element(program, condition, side) for side in sides]
    for counter, bound, turned in ((counters[0], bounds[1], False), (counters[1], bounds[0], True)):
        if counter is None or bound is None:
            continue
        start = _start(program, loop, computation, counter, loops or {})
        step = _step(program, body, counter)
        if start is not None and step:
            return _count(start, bound, step, _flipped(direction) if turned else direction)
    return None


def _count(start: int, bound: int, step: int, direction: str) -> int | None:
    """Trips of a counter from `start` in steps of `step` while it stands in that relation to `bound`."""
    if direction in ("LT", "LE") and step > 0:
        return max(0, -((start - bound - (direction == "LE")) // step))
    if direction in ("GT", "GE") and step < 0:
        return max(0, -((bound - start - (direction == "GE")) // -step))
    return None


def _flipped(direction: str) -> str:
    return direction.translate(str.maketrans("LG", "GL"))


def _comparison(program: Program, condition: str) -> tuple[str, tuple[Instruction, ...]] | None:
    """Direction and sides, in the condition itself, of the comparison that ends a loop."""
    root = program.root(condition)
    while root.opcode in _PASSED:
        root = program.operands(condition, root)[0]
    sides = program.operands(condition, root)
    inner = root
    if root.opcode == "fusion":
        inside = root.calls["calls"]
        inner = program.root(inside)
        parameters = program.operands(inside, inner)
        if any(side.opcode != "parameter" for side in parameters):
            return None
        sides = tuple(sides[int(side.literal)] for side in parameters)
    direction = inner.rest.partition("direction=")[2][:2]
    return (direction, sides) if inner.opcode == "compare" and len(sides) == 2 else None


def _through(program: Program, computation: str, instruction: Instruction) -> Instruction:
    """What an instruction hands on unchanged."""
    while instruction.opcode in _PASSED:
        instruction = program.operands(computation, instruction)[0]
    return instruction


def _element(program: Program, computation: str, instruction: Instruction) -> int | None:
    """Which element of the computation's one parameter it is."""
    origin = _through(program, computation, instruction)
    if origin.opcode != "get-tuple-element" or program.operands(computation, origin)[0].opcode != "parameter":
        return None
    return int(origin.rest.partition("index=")[2].partition(",")[0])


def _number(
    program: Program, computation: str, instruction: Instruction, loops: dict[str, tuple[str, Instruction]], body: str
) -> int | None:
    """The constant that an instruction is, also where it comes into the loops around unchanged."""
    origin = _through(program, computation, instruction)
    if origin.opcode == "constant":
        return int(origin.literal) if origin.literal.lstrip("-").isdecimal() else None
    place = _element(program, computation, instruction)
    if place is None or computation not in loops or not _kept(program, body, place):
        return None
    outside, loop = loops[computation]
    return _start(program, loop, outside, place, loops)


def _start(
    program: Program,
    loop: Instruction,
    computation: str,
    place: int,
    loops: dict[str, tuple[str, Instruction]],
) -> int | None:
    """The constant that an element of a loop's state begins with."""
    given = _through(program, computation, program.operands(computation, loop)[0])
    if given.opcode != "tuple":
        return None
    return _number(program, computation, program.operands(computation, given)[place], loops, computation)


def _new(program: Program, body: str, place: int) -> Instruction:
    """What a loop's body makes of an element of its state."""
    return program.operands(body, program.root(body))[place]


def _kept(program: Program, body: str, place: int) -> bool:
    return program.root(body).opcode == "tuple" and _element(program, body, _new(program, body, place)) == place


def _step(program: Program, body: str, place: int) -> int | None:
    """What is added to a counter in every trip."""
    if program.root(body).opcode != "tuple":
        return None
    new = _through(program, body, _new(program, body, place))
    if new.opcode not in ("add", "subtract"):
        return None
    constants = [_through(program, body, side) for side in program.operands(body, new)]
    numbers = [int(side.literal) for side in constants if side.opcode == "constant"]
    if len(numbers) != 1:
        return None
    return numbers[0] if new.opcode == "add" else -numbers[0]

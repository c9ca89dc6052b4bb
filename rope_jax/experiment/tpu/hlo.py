"""A compiled program as text, read into instructions: shapes, operands, what they call and where they were written.

What is read is the form that `compiled.as_text()` prints after all optimisations.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

_WIDTHS: Mapping[str, float] = MappingProxyType({"pred": 1, "token": 0, "opaque": 0, "s4": 0.5, "u4": 0.5})
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")


class Shape(NamedTuple):
    """One array: its type, its sizes, and the memory it lies in (0 is the large one, others are on the chip)."""

    dtype: str
    sizes: tuple[int, ...]
    space: int = 0

    @property
    def elements(self) -> int:
        """How many numbers."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Their size, without the padding of tiles."""
        width = _WIDTHS.get(self.dtype)
        if width is None:
            bits = re.search(r"\d+", self.dtype)
            width = int(bits.group()) / 8 if bits else 0
        return math.ceil(self.elements * width)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name, opcode: such as "fusion.3" and "fusion".
      shapes: of the result, all parts of a tuple.
      operands: names; of a constant or parameter, `literal` holds what stands in the brackets.
      rest: the attributes after the operands, as text.
      root: whether it is the computation's result.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    rest: str
    root: bool

    @property
    def calls(self) -> dict[str, str]:
        """Attribute -> computation, branches as "branch0", "branch1", ..."""
        called = dict(_CALLED.findall(self.rest))
        branches = _BRANCHES.search(self.rest)
        names = _NAME.findall(branches.group(1)) if branches else []
        return called | {f"branch{i}": name for i, name in enumerate(names)}

    @property
    def op_name(self) -> str:
        """Where the program that was traced made it: "jit(step)/while/body/...", or ""."""
        found = _OP_NAME.search(self.rest)
        return found.group(1) if found else ""

    @property
    def frame(self) -> int | None:
        """The number of its stack frame, or None."""
        found = _FRAME.search(self.rest)
        return int(found.group(1)) if found else None

    @property
    def bytes(self) -> int:
        """Of the whole result."""
        return sum(shape.bytes for shape in self.shapes)


Computation = Mapping[str, Instruction]


@dataclass(frozen=True)
class Program:
    """All computations of a module by name, the entry's name, and "file:function" of every stack frame."""

    computations: Mapping[str, Computation]
    entry: str
    functions: Mapping[int, tuple[str, ...]]

    def root(self, computation: str) -> Instruction:
        """The result of a computation."""
        lines = list(self.computations[computation].values())
        return next((line for line in lines if line.root), lines[-1])

    def operands(self, computation: str, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions whose results one takes."""
        lines = self.computations[computation]
        return tuple(lines[name] for name in instruction.operands if name in lines)

    def written_in(self, instruction: Instruction) -> tuple[str, ...]:
        """The functions that were running when it was traced, innermost first, as far as the program tells."""
        return self.functions.get(instruction.frame or -1, ())


def parsed(text: str) -> Program:
    """The text of a compiled module, read.

    Raises:
      ValueError: there is no entry computation in it.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, lines = "", None
    for raw in _whole_lines(text):
        header = _HEADER.match(raw)
        if header:
            lines = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif raw == "}":
            lines = None
        elif lines is not None:
            instruction = _instruction(raw)
            if instruction is not None:
                lines[instruction.name] = instruction
    if not entry:
        raise ValueError("`text` must be a compiled module with an entry; got none. Pass compiled.as_text().")
    return Program(computations, entry, _functions(text[: text.find("\nENTRY")]))


def _whole_lines(text: str) -> Iterator[str]:
    """The lines of computations; what a kernel notes about itself goes over several, which are joined."""
    whole = ""
    for raw in text.splitlines():
        begins = raw == "}" or raw.startswith("  ") or _HEADER.match(raw)
        if begins or not whole.startswith("  "):
            yield whole
            whole = raw
        else:
            whole += raw
    yield whole


def _instruction(raw: str) -> Instruction | None:
    found = _INSTRUCTION.match(_COMMENT.sub("", raw))
    if not found:
        return None
    root, name, text = found.groups()
    end = _closing(text) if text.startswith("(") else text.find(" ")
    shapes, after = _shapes(text[: end + 1]), text[end + 1 :].lstrip()
    opcode, bracket, _ = after.partition("(")
    if not bracket:
        return None
    inside = after[len(opcode) : len(opcode) + _closing(after[len(opcode) :]) + 1]
    rest = after[len(opcode) + len(inside) :]
    names = () if opcode in ("constant", "parameter") else tuple(_NAME.findall(inside))
    return Instruction(name, opcode, shapes, names, inside[1:-1], rest, bool(root))


def _closing(text: str) -> int:
    """Where the bracket that opens at 0 closes."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(text) - 1


def _shapes(text: str) -> tuple[Shape, ...]:
    shapes = []
    for dtype, sizes, layout in _SHAPE.findall(text):
        space = _SPACE.search(layout)
        dims = tuple(int(size) for size in sizes.split(",") if size)
        shapes.append(Shape(dtype, dims, int(space.group(1)) if space else 0))
    return tuple(shapes)


def _functions(text: str) -> dict[int, tuple[str, ...]]:
    """Stack frame -> "file:function" from the innermost outwards, from the tables at the head of the module."""
    files, functions = (
        {int(number): name for number, name in re.findall(r'^(\d+) "([^"]*)"$', _table(text, title), re.M)}
        for title in ("FileNames", "FunctionNames")
    )
    places = {
        int(number): f"{files.get(int(file), '')}:{functions.get(int(function), '')}"
        for number, file, function in re.findall(
            r"^(\d+) \{file_name_id=(\d+) function_name_id=(\d+)", _table(text, "FileLocations"), re.M
        )
    }
    frames = {
        int(number): (places.get(int(place), ""), int(parent or 0))
        for number, place, parent in re.findall(
            r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", _table(text, "StackFrames"), re.M
        )
    }
    return {frame: tuple(_outwards(frame, frames)) for frame in frames}


def _outwards(frame: int, frames: dict[int, tuple[str, int]]) -> Iterator[str]:
    # Parents are numbered before their children, counted from one; the outermost is its own.
    while frame in frames:
        place, parent = frames[frame]
        yield place
        frame = parent - 1 if 0 < parent - 1 < frame else 0


def _table(text: str, title: str) -> str:
    """The lines below a title, up to an empty one."""
    start = text.find(f"\n{title}\n")
    return "" if start < 0 else text[start + len(title) + 2 :].split("\n\n", 1)[0]

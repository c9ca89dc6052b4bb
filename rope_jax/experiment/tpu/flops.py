"""Floating-point operations of the matrix products in a compiled program, by their shapes."""

import math
import re

import numpy as np

from rope_jax.experiment.tpu.hlo import Instruction, Program, Shape
from rope_jax.experiment.tpu.trips import Run

_LISTS = re.compile(r"(\w+)=\{([\d,]*)\}")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


def product_flops(program: Program, runs: tuple[Run, ...]) -> float:
    """Two for every multiplication and addition of dots and convolutions, inside fusions too.

    Kernels written by hand are not in it: what they compute cannot be read from the program.
    """
    return float(sum(run.times * _flops(program, run.computation, run.instruction) for run in runs))


def _flops(program: Program, computation: str, instruction: Instruction) -> float:
    if instruction.opcode == "fusion":
        inside = instruction.calls["calls"]
        return sum(_flops(program, inside, line) for line in program.computations[inside].values())
    if instruction.opcode == "dot":
        return _dot(instruction, program.operands(computation, instruction)[0].shapes[0])
    if instruction.opcode == "convolution":
        left, right = (operand.shapes[0] for operand in program.operands(computation, instruction)[:2])
        return _convolution(instruction, left, right)
    return 0.0


def _dot(instruction: Instruction, left: Shape) -> float:
    contracted = dict(_LISTS.findall(instruction.rest)).get("lhs_contracting_dims", "")
    shared = math.prod(left.sizes[int(axis)] for axis in contracted.split(",") if axis)
    return 2.0 * instruction.shapes[0].elements * shared


def _convolution(instruction: Instruction, left: Shape, right: Shape) -> float:
    """The compiler writes matrix products as convolutions, with batch axes as dilated windows."""
    labels = _LABELS.search(instruction.rest)
    if labels is None:
        return 0.0
    sizes = [
        dict(zip(names, shape.sizes, strict=True))
        for names, shape in zip(labels.groups(), (left, right, instruction.shapes[0]), strict=True)
    ]
    lhs, kernel, result = sizes
    flops = 2.0 * result["b"] * result["f"] * kernel["i"]
    windows = _window(instruction.rest)
    for place, axis in enumerate(sorted(name for name in kernel if name.isdigit())):
        own = {key: values[place] for key, values in windows.items() if place < len(values)}
        flops *= _pairs(lhs[axis], kernel[axis], result[axis], own)
    return flops


def _window(rest: str) -> dict[str, list[str]]:
    found = _WINDOW.search(rest)
    fields = (field.partition("=") for field in (found.group(1).split() if found else ()))
    return {key: value.split("x") for key, _, value in fields}


def _pairs(size: int, kernel: int, result: int, window: dict[str, str]) -> int:
    """How many (result, kernel) places along one axis meet an element of the input, not padding and not a hole."""
    if kernel == 1 and not window:
        return result
    stride, spread = int(window.get("stride", 1)), int(window.get("rhs_dilate", 1))
    holes, low = int(window.get("lhs_dilate", 1)), int(window.get("pad", "0_0").split("_")[0])
    places = np.arange(result, dtype=np.int64)[:, None] * stride + np.arange(kernel, dtype=np.int64) * spread - low
    return int(np.count_nonzero((places >= 0) & (places <= (size - 1) * holes) & (places % holes == 0)))

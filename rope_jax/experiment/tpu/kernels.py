"""The kernels written by hand in a compiled program: which ones, how often, and what they compute."""

import math
import re
from collections.abc import Iterable

from rope_jax.experiment.tpu.hlo import Program
from rope_jax.experiment.tpu.trips import Run

TARGET = "tpu_custom_call"
_SPLASH = re.compile(r"\b(splash_\w+?)(?=[./\s]|$)")
# Matrix products of one pair of blocks: logits and result forwards; logits again, and the gradients, backwards.
_PRODUCTS = (("_fwd", 2), ("_dq", 3), ("_dkv", 4))


def kernel_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Those of the instructions that are kernels."""
    return tuple(run for run in runs if f'custom_call_target="{TARGET}"' in run.instruction.rest)


def kernel_name(run: Run) -> str:
    """The name that the kernel was given, or the instruction's without its number."""
    for text in (run.instruction.op_name, run.instruction.name):
        found = _SPLASH.findall(text)
        if found:
            return str(found[-1])
    return re.sub(r"[.\d]+$", "", run.instruction.name)


def kernel_flops(program: Program, runs: Iterable[Run]) -> float:
    """Operations of the splash kernels, by the shapes of their queries and keys.

        products * 2 * rows * heads * q * kv * head_dim / 2

    The last half is the causal mask's, over all shards on average; a window leaves less. Other kernels count nothing.
    """
    return sum((run.times * _flops(program, run) for run in runs), 0.0)


def _flops(program: Program, run: Run) -> float:
    name = kernel_name(run)
    products = next((number for phase, number in _PRODUCTS if phase in name), 0)
    arrays = [
        operand.shapes[0].sizes
        for operand in program.operands(run.computation, run.instruction)
        if len(operand.shapes) == 1 and operand.shapes[0].dtype in ("bf16", "f32") and len(operand.shapes[0].sizes) >= 3
    ]
    if not products or len(arrays) < 2:
        return 0.0
    q, k = arrays[:2]
    return products * math.prod(q) * k[-2]

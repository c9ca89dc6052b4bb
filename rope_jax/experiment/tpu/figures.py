"""All figures of one compiled program on one chip."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rope_jax.experiment.tpu.collectives import Collective, collectives
from rope_jax.experiment.tpu.flops import product_flops
from rope_jax.experiment.tpu.hlo import parsed
from rope_jax.experiment.tpu.kernels import kernel_flops, kernel_name, kernel_runs
from rope_jax.experiment.tpu.memory import Memory, memory_of
from rope_jax.experiment.tpu.topologies import Chip
from rope_jax.experiment.tpu.traffic import Traffic, traffic
from rope_jax.experiment.tpu.trips import Run, runs

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclass(frozen=True)
class Figures:
    """What one chip does in one run of the program.

    Attributes:
      memory: what it holds.
      flops: of all matrix products and kernels.
      kernel_flops: of these, what the attention kernels compute.
      bytes: read and written, in HBM and on the chip.
      hbm_bytes: of these, what passes to and from HBM.
      cycles: the compiler's estimate over all instructions that it has one for.
      collectives: by kind.
      kernels: name -> how often it runs.
      optimal_seconds, once_flops, once_bytes: the compiler's own sums, which count every loop body once and take one
        off for every call that it knows nothing of.
      certain: whether the trips of every loop are known.
    """

    memory: Memory
    flops: float
    kernel_flops: float
    bytes: Traffic
    hbm_bytes: Traffic
    cycles: int
    collectives: tuple[Collective, ...]
    kernels: dict[str, int]
    optimal_seconds: float
    once_flops: float
    once_bytes: float
    certain: bool

    def least_seconds(self, chip: Chip) -> float:
        """No run is faster: all products at the peak rate, or all bytes of HBM at full bandwidth."""
        return max(self.flops / chip.flops, self.hbm_bytes.whole / chip.bandwidth)

    def estimated_seconds(self, chip: Chip) -> float | None:
        """The compiler's cycles, and kernels, of which it knows none, at the peak rate; collectives are left out."""
        return None if chip.clock is None else self.cycles / chip.clock + self.kernel_flops / chip.flops


def figures_of(compiled: Any) -> Figures:
    """Of a program from `jax.jit(...).lower(...).compile()`."""
    program = parsed(compiled.as_text())
    all_runs = runs(program)
    costs = compiled.cost_analysis()
    own_kernels = kernel_runs(all_runs)
    own = kernel_flops(program, own_kernels)
    return Figures(
        memory=memory_of(compiled),
        flops=product_flops(program, all_runs) + own,
        kernel_flops=own,
        bytes=traffic(program, all_runs, on_chip=True),
        hbm_bytes=traffic(program, all_runs, on_chip=False),
        cycles=estimated_cycles(all_runs),
        collectives=collectives(program, all_runs),
        kernels=_counted(own_kernels),
        optimal_seconds=costs.get("optimal_seconds", 0.0),
        once_flops=costs.get("flops", 0.0),
        once_bytes=costs.get("bytes accessed", 0.0),
        certain=all(run.certain for run in all_runs),
    )


def estimated_cycles(runs: Iterable[Run]) -> int:
    """The compiler's estimates, summed over every trip; collectives and kernels have none."""
    found = ((run.times, _CYCLES.search(run.instruction.rest)) for run in runs)
    return sum(times * int(cycles.group(1)) for times, cycles in found if cycles)


def _counted(kernels: Iterable[Run]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in kernels:
        counts[kernel_name(run)] = counts.get(kernel_name(run), 0) + run.times
    return counts

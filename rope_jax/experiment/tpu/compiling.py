"""A program compiled for a slice, or why it could not be."""

import time
from dataclasses import dataclass
from typing import Any

import jax

from rope_jax.experiment.tpu.figures import Figures, figures_of
from rope_jax.experiment.tpu.memory import TooLargeError, too_large
from rope_jax.experiment.tpu.programs import lowered
from rope_jax.experiment.tpu.topologies import Topology, devices
from rope_jax.experiment.training.start import Run


@dataclass(frozen=True)
class Compiled:
    """What came of compiling one program of a run.

    Attributes:
      name: of the run; what, stage: which program of it.
      topology: what it was compiled for.
      mesh: axis -> ways, of the axes that divide.
      rows, length: of the batch.
      figures: on one chip; None where the compiler gave up.
      needed: bytes on one chip, of which `available` may be used; None where the compiler does not say.
      lower_seconds, compile_seconds: on this machine.
    """

    name: str
    what: str
    stage: str
    topology: Topology
    mesh: dict[str, int]
    rows: int
    length: int
    figures: Figures | None
    needed: int | None
    available: int | None
    lower_seconds: float
    compile_seconds: float

    @property
    def fits(self) -> bool:
        """Whether a chip can hold it."""
        return self.figures is not None and self.figures.memory.fits(self.topology.chip)


def compiled(run: Run, topology: Topology, *, what: str = "step", stage: str | None = None) -> Compiled:
    """Compile a program of a run with the TPU's own compiler; no TPU is needed.

    Args:
      run: from `open_run`.
      topology: what to compile for.
      what, stage: as in `lowered`.

    Raises:
      ImportError: the TPU compiler is not installed.
      ValueError: what `lowered` refuses.
    """
    found = devices(topology)
    start = time.perf_counter()
    lowering = lowered(run, found, what=what, stage=stage)
    middle = time.perf_counter()
    refusal: TooLargeError | None = None
    program: Any = None
    try:
        program = lowering.lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        refusal = too_large(str(error))
        if refusal is None:
            raise
    end = time.perf_counter()
    figures = None if program is None else figures_of(program)
    return Compiled(
        name=run.config.name,
        what=what,
        stage=lowering.stage.name,
        topology=topology,
        mesh={axis: size for axis, size in dict(lowering.mesh.shape).items() if size > 1},
        rows=lowering.rows,
        length=lowering.length,
        figures=figures,
        needed=refusal.needed if figures is None and refusal else figures.memory.total if figures else None,
        available=refusal.available if refusal else topology.chip.hbm,
        lower_seconds=middle - start,
        compile_seconds=end - middle,
    )

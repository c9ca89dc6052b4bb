"""How a sweep uses a Ray cluster: its address, what a worker takes up, and how patient the sweep is."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """How a Ray cluster is used.

    Args:
      address: HOST:PORT of the head node, or "auto" for a cluster that runs on this machine; None: RAY_ADDRESS where it
        is set, else this machine alone.
      cpus: CPUs that a worker takes up.
      gpus: GPUs that a worker takes up, a share of one where below 1; None: 1 where a node has any, else 0.
      workers: most workers at once; None: as many as the nodes hold.
      retries: how often a cell is tried again after its worker was lost or raised an error.
      wait: seconds within which the cluster must answer and have a node that holds a worker.

    Raises:
      ValueError: one is out of range.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float | None = None
    workers: int | None = None
    retries: int = 2
    wait: float = 30.0

    def __post_init__(self) -> None:
        rules = (
            ("cpus", self.cpus > 0, "be above 0"),
            ("gpus", self.gpus is None or _divisible(self.gpus), "be 0, below 1, or whole"),
            ("workers", self.workers is None or self.workers >= 1, "be at least 1"),
            ("retries", self.retries >= 0, "be at least 0"),
            ("wait", 0 < self.wait < math.inf, "be above 0"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise ValueError(
                    f"`--ray.{name}` must {rule}; got {getattr(self, name)}. Leave it out for its default."
                )
        if self.address is not None and "://" in self.address:
            raise ValueError(
                f"`--address` must be HOST:PORT of the head node, or auto; got {self.address}. Start the sweep on a "
                "machine of the cluster, which shares its storage."
            )


def _divisible(gpus: float) -> bool:
    """Whether Ray can hand out so many: a share of one, or whole ones."""
    return 0 <= gpus < 1 or (math.isfinite(gpus) and gpus == int(gpus) and gpus > 0)

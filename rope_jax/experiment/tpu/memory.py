"""What a compiled program holds in the memory of one chip, and whether that fits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rope_jax.experiment.tpu.topologies import Chip

_UNITS: Mapping[str, int] = MappingProxyType({"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40})
_EXCEEDED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", re.I)


@dataclass(frozen=True)
class Memory:
    """Bytes on one chip while the program runs.

    Attributes:
      arguments: what it is called with.
      outputs: what it returns.
      aliased: of the outputs, what takes the place of donated arguments.
      temporaries: everything in between, at its most.
      code: the program itself.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """All at once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code

    def fits(self, chip: Chip) -> bool:
        """Whether the chip has that much."""
        return self.total <= chip.hbm


def memory_of(compiled: Any) -> Memory:
    """As the compiler has laid it out, from `jax.jit(...).lower(...).compile()`."""
    found = compiled.memory_analysis()
    return Memory(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        aliased=found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        code=found.generated_code_size_in_bytes,
    )


class TooLargeError(RuntimeError):
    """The compiler found no way to fit the program into the memory of a chip.

    Attributes:
      needed: bytes that it would take; None where the compiler does not say.
      available: bytes that the compiler may use.
    """

    def __init__(self, needed: int | None, available: int | None) -> None:
        self.needed, self.available = needed, available
        super().__init__("the program does not fit the memory of a chip")


def too_large(message: str) -> TooLargeError | None:
    """The compiler's complaint about memory, read; None for another one.

    Example:
      >>> too_large("RESOURCE_EXHAUSTED: ... Used 23.50G of 15.75G hbm. Exceeded ...").available
      16911433728
    """
    if "RESOURCE_EXHAUSTED" not in message or "hbm" not in message.lower():
        return None
    found = _EXCEEDED.search(message)
    if not found:
        return TooLargeError(None, None)
    needed, its_unit, available, unit = found.groups()
    return TooLargeError(
        round(float(needed) * _UNITS[its_unit.upper()]), round(float(available) * _UNITS[unit.upper()])
    )

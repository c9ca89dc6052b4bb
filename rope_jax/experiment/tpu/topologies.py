"""The TPU slices that programs are compiled for: what their chips can do, and their devices without having any."""

import difflib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jax.experimental import topologies as descriptions

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """A generation of chips, by its maker's public figures.

    Attributes:
      generation: its name.
      hbm: memory in bytes.
      flops: bfloat16 operations per second at best.
      bandwidth: of the memory, bytes per second.
      clock: cycles per second; None where none is published.
      setting: the compiler's name of the form in which the cores of a chip are one device; "": its default.
    """

    generation: str
    hbm: int
    flops: float
    bandwidth: float
    clock: float | None
    setting: str = ""


@dataclass(frozen=True)
class Topology:
    """A slice: chips of one generation in a grid."""

    chip: Chip
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """As the cloud writes it: "v5e:2x2"."""
        return f"{self.chip.generation}:{'x'.join(map(str, self.sizes))}"

    @property
    def chips(self) -> int:
        """Their number; every chip is one device."""
        return math.prod(self.sizes)


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "v4": Chip("v4", 32 * GIB, 275e12, 1.228e12, 1.05e9, "megacore"),
        "v5e": Chip("v5e", 16 * GIB, 197e12, 0.819e12, 1.5e9),
        "v5p": Chip("v5p", 95 * GIB, 459e12, 2.765e12, 1.75e9),
        "v6e": Chip("v6e", 32 * GIB, 918e12, 1.640e12, None),
    }
)
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBES = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)),
    *((8, 8, 16), (8, 16, 16), (16, 16, 16)),
)
_PARTS = ((1, 1, 1), (2, 1, 1))
_GRIDS = MappingProxyType({"v4": _CUBES, "v5e": _FLAT, "v5p": (*_PARTS, *_CUBES), "v6e": _FLAT})


def known() -> tuple[Topology, ...]:
    """All that are known, by generation and size."""
    return tuple(Topology(CHIPS[generation], sizes) for generation, grids in _GRIDS.items() for sizes in grids)


def named(name: str) -> Topology:
    """The topology of a name.

    Raises:
      ValueError: there is none; the nearest ones are named.

    Example:
      >>> named("v5p:2x2x2").chips
      8
    """
    names = {topology.name: topology for topology in known()}
    if name in names:
        return names[name]
    own = [other for other in names if other.startswith(f"{name.partition(':')[0].strip().lower()}:")]
    near = difflib.get_close_matches(name.lower(), own or list(names), n=4, cutoff=0.3) or own or list(names)
    raise ValueError(
        f"`topology` must be one that is known; got {name!r}. Near ones: {', '.join(near[:4])}; --topologies lists all."
    )


def devices(topology: Topology) -> list[Any]:
    """Its devices, to compile for: they hold no arrays and run nothing.

    The compiler asks the cloud what machine this is unless the environment says so; see scripts/compile_tpu.py.

    Raises:
      ImportError: the TPU compiler is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            "`libtpu`, the TPU compiler, must be installed; got none. "
            'Install it, in an environment of its own: pip install "rope-jax[tpu]".'
        )
    asked: dict[str, Any] = {"chip_config_name": topology.chip.setting} if topology.chip.setting else {}
    if topology.chips < 4:  # a part of a host, which the compiler takes for a whole one unless told
        asked["chips_per_host_bounds"] = (*topology.sizes, 1)[:3]
    found = descriptions.get_topology_desc(platform="tpu", topology_name=topology.name, **asked)
    return list(found.devices)

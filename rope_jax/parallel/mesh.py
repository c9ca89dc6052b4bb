"""The mesh: devices in four named axes, those of size 1 included, so that one device is no special case."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

AXES = ("data", "fsdp", "tensor", "context")
_REST = -1


@dataclass(frozen=True)
class MeshShape:
    """How many ways each axis divides; -1, in at most one axis: what is left of the devices.

    Attributes:
      data: rows of the batch, every shard with all parameters.
      fsdp: rows of the batch, every shard with its part of the parameters.
      tensor: heads, MLP channels and the vocabulary.
      context: tokens of a row.

    Example:
      >>> MeshShape(data=-1, tensor=2).resolved(8)
      MeshShape(data=4, fsdp=1, tensor=2, context=1)
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        for name, size in self.items():
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"`{name}` must be an integer; got {size!r}. Write the number of shards.")
            if size < 1 and size != _REST:
                raise ValueError(f"`{name}` must be at least 1, or -1 for what is left; got {size}. 1 does not divide.")
        open_axes = [name for name, size in self.items() if size == _REST]
        if len(open_axes) > 1:
            raise ValueError(
                f"`mesh` must leave at most one axis open with -1; got {' and '.join(open_axes)}. Write a number."
            )

    def items(self) -> tuple[tuple[str, int], ...]:
        """(axis, size) in the order of the mesh."""
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))

    def resolved(self, devices: int) -> "MeshShape":
        """The shape with -1 filled in, for a number of devices.

        Raises:
          ValueError: the sizes do not multiply to the devices.
        """
        sizes = dict(self.items())
        known = math.prod(size for size in sizes.values() if size != _REST)
        for name, size in sizes.items():
            if size == _REST and devices % known == 0:
                sizes[name] = devices // known
        if math.prod(sizes.values()) != devices:
            written = " x ".join(f"{name} {size}" for name, size in self.items() if size != 1) or "one device"
            raise ValueError(
                f"`mesh` must multiply to the {devices} devices there are; got {written} = {known} ways. "
                "Change an axis, or write -1 in one for what is left."
            )
        return MeshShape(**sizes)


def make_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of a shape, with the axes `AXES`, all of type Auto: shardings are annotated, XLA infers the rest.

    Args:
      shape: how many ways each axis divides.
      devices: those to use, laid out for the network between them; None: all of this program.

    Raises:
      ValueError: the sizes do not multiply to the devices.

    Example:
      >>> dict(make_mesh(MeshShape(), devices=jax.devices()[:1]).shape)
      {'data': 1, 'fsdp': 1, 'tensor': 1, 'context': 1}
    """
    sizes = shape.resolved(len(jax.devices() if devices is None else devices))
    lengths, types = tuple(size for _, size in sizes.items()), (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(lengths, AXES, axis_types=types, devices=devices)

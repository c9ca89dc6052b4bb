"""How a stored tensor and the parameters made of it turn into each other: each way undoes the other exactly."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

Shape = tuple[int, ...]


@runtime_checkable
class Codec(Protocol):
    """One stored tensor on one side, one or several parameters of one layer on the other."""

    @property
    def wide(self) -> bool:
        """Whether the parameter must stay float32, for 16 bits would lose what the tensor holds."""

    def shape(self, parameters: tuple[Shape, ...]) -> Shape:
        """The shape of the tensor for parameters of these shapes."""

    def decode(self, tensor: np.ndarray, parameters: tuple[Shape, ...], heads: int) -> tuple[np.ndarray, ...]:
        """The parameters that a tensor holds, as views where possible."""

    def encode(self, parameters: tuple[np.ndarray, ...], heads: int) -> np.ndarray:
        """The tensor that holds the parameters."""


@dataclass(frozen=True)
class Copy:
    """As it is: embeddings, norms, biases."""

    wide: bool = False

    def shape(self, parameters: tuple[Shape, ...]) -> Shape:
        """That of the parameter."""
        return parameters[0]

    def decode(self, tensor: np.ndarray, parameters: tuple[Shape, ...], heads: int) -> tuple[np.ndarray, ...]:
        """The tensor."""
        return (tensor,)

    def encode(self, parameters: tuple[np.ndarray, ...], heads: int) -> np.ndarray:
        """The parameter."""
        return parameters[0]


@dataclass(frozen=True)
class OnePlus(Copy):
    """A norm's scale stored as its difference from one, w = scale - 1 (Gemma)."""

    wide: bool = True

    def decode(self, tensor: np.ndarray, parameters: tuple[Shape, ...], heads: int) -> tuple[np.ndarray, ...]:
        """1 + w in float32."""
        return (np.float32(1) + tensor.astype(np.float32),)

    def encode(self, parameters: tuple[np.ndarray, ...], heads: int) -> np.ndarray:
        """The scale less one."""
        return parameters[0].astype(np.float32) - np.float32(1)


@dataclass(frozen=True)
class Rows:
    """Kernels [in, out] stored as rows, one after the other: [sum of out, in]; biases [out] as [sum of out]."""

    wide: bool = False

    def shape(self, parameters: tuple[Shape, ...]) -> Shape:
        """The outputs of all, then the inputs."""
        return (sum(shape[-1] for shape in parameters), *parameters[0][:-1])

    def decode(self, tensor: np.ndarray, parameters: tuple[Shape, ...], heads: int) -> tuple[np.ndarray, ...]:
        """Each parameter's rows, transposed."""
        ends = np.cumsum([shape[-1] for shape in parameters])[:-1]
        return tuple(part.T for part in np.split(tensor, ends))

    def encode(self, parameters: tuple[np.ndarray, ...], heads: int) -> np.ndarray:
        """The transposed parameters, one under the other."""
        return np.concatenate([parameter.T for parameter in parameters])


@dataclass(frozen=True)
class HeadRows(Rows):
    """Queries, keys and values stored head by head: rows [heads, 3, head_dim] (GPT-NeoX)."""

    def decode(self, tensor: np.ndarray, parameters: tuple[Shape, ...], heads: int) -> tuple[np.ndarray, ...]:
        """Each parameter's rows of all heads, transposed."""
        count = len(parameters)
        by_head = tensor.reshape(heads, count, -1, *tensor.shape[1:])
        return tuple(by_head[:, part].reshape(-1, *tensor.shape[1:]).T for part in range(count))

    def encode(self, parameters: tuple[np.ndarray, ...], heads: int) -> np.ndarray:
        """The rows of every head, queries before keys before values."""
        rows: list[Any] = [parameter.T.reshape(heads, 1, -1, *parameter.shape[:-1]) for parameter in parameters]
        return np.concatenate(rows, axis=1).reshape(-1, *parameters[0].shape[:-1])

"""What weights are read from: a set of named tensors, one of which is in memory at a time."""

from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class TensorSource(Protocol):
    """Named tensors of a checkpoint; names and shapes come from headers alone."""

    def names(self) -> frozenset[str]:
        """The names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""

    def read(self, name: str) -> np.ndarray:
        """The numbers of a tensor, float32, bfloat16 or float16, in memory of their own."""

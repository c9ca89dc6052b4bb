"""How much text the trained targets could see."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rope_jax.experiment.recipe.batch import Batch

BINS = 31  # up to 2^31 tokens


class ContextHistogram:
    """Trained targets by the tokens before them in their segment, which is all that attention may reach.

        context of target t+1 = |{u <= t : segment_u = segment_t}|,   bin k holds contexts of [2^k, 2^(k+1))

    A target has at least the token that it follows before it, so there is no bin for 0.

    Example:
        >>> row = np.ones((1, 3), np.int32)
        >>> histogram = ContextHistogram()
        >>> histogram.add(Batch(row, row, np.ones((1, 3), np.float32), row - 1, row, row))
        >>> histogram.as_dict()
        {'1': 1, '2-3': 2}
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)

    def add(self, batch: Batch) -> None:
        """Counts the targets of a batch, or of a process's part of it, in the order that it was made in."""
        index = np.arange(batch.segments.shape[1], dtype=np.int32)
        starts = np.ones(batch.segments.shape, bool)
        starts[:, 1:] = batch.segments[:, 1:] != batch.segments[:, :-1]
        context = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1) + 1
        trained = context[batch.weights > 0]
        # frexp gives the power of two above; counts are exact in float64.
        self.counts += np.bincount(np.frexp(trained.astype(np.float64))[1] - 1, minlength=BINS)

    def merge(self, other: "ContextHistogram") -> "ContextHistogram":
        """Adds what another one counted, such as another process's; returns itself."""
        self.counts += other.counts
        return self

    def as_dict(self) -> dict[str, int]:
        """Targets by range of context, from "1" and "2-3" to the longest met."""
        used = int(np.max(np.nonzero(self.counts)[0], initial=-1)) + 1
        return {_range(k): int(self.counts[k]) for k in range(used)}

    @classmethod
    def from_dict(cls, counts: Mapping[str, Any]) -> "ContextHistogram":
        """What `as_dict` gave, to count on from."""
        histogram = cls()
        histogram.counts[: len(counts)] = [counts[_range(k)] for k in range(len(counts))]
        return histogram


def _range(k: int) -> str:
    return "1" if k == 0 else f"{2**k}-{2 ** (k + 1) - 1}"

"""What a task is asked for: batches to train on, and questions with the weight of every target."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np


class Batch(NamedTuple):
    """Tokens int32 [batch, length + 1] and the weight of each target `tokens[:, 1:]`, float32 [batch, length]."""

    tokens: np.ndarray
    weights: np.ndarray


class Questions(NamedTuple):
    """What is asked at one length: tokens int32 [items, length + 1], weights float32 [items, length].

    `depths`, float32 [items], says where the key lies, from 0 (first) to 1 (last); None for text.
    """

    tokens: np.ndarray
    weights: np.ndarray
    depths: np.ndarray | None


@runtime_checkable
class Task(Protocol):
    """What training and evaluation ask of a task.

    `corpus` is the digest of the text that it reads, None for a task that draws its items. `notes` is what a reader of
    its numbers must know of the text.
    """

    name: str
    vocab: int
    metric: str
    corpus: str | None
    notes: tuple[str, ...]

    @property
    def bos(self) -> int | None:
        """The token that opens every sequence; None where none does."""
        ...

    def train_batch(self, step: int, length: int, batch: int) -> Batch:
        """The batch of a step: a function of (seed, step, length, batch) alone."""
        ...

    def questions(self, length: int) -> Questions:
        """All evaluation items of one length, the same in whatever order lengths are asked."""
        ...

    def chance(self, questions: Questions) -> float | None:
        """Accuracy of guessing the scored targets; None for a task without an accuracy."""
        ...

"""Which pieces come when: sources in their shares, each shuffled anew whenever it has been read through."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rope_jax.experiment.recipe.pieces import Pieces

TOGETHER = 2**12  # places of orders that are drawn at once, so that one of few pieces costs no more a piece


class Mixture:
    """Blocks of pieces by number, in any order.

    Of the first n pieces of all, each source in turn has the whole part of what its share of the remaining sources is
    of the remaining pieces, which never falls as n grows and is off by less than a piece for every source before it.

    Args:
        parts: pieces of every source, none of them empty.
        units: whole shares of pieces.
        seeds: of the orders of every source, and of the order that they come in together.
    """

    def __init__(self, parts: Sequence[Pieces], units: Sequence[int], seeds: Sequence[int]) -> None:
        self.parts, self.units, self.seed = tuple(parts), tuple(units), seeds[-1]
        self.epochs = [Epochs(len(part), seed) for part, seed in zip(parts, seeds, strict=False)]

    def __call__(self, number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [sum of sizes, 3] of the pieces of a block of `count`, behind each other, and sizes [count]."""
        before, after = self._counts(number * count), self._counts((number + 1) * count)
        drawn = [
            part.gather(epochs.between(low, high))
            for part, epochs, low, high in zip(self.parts, self.epochs, before, after, strict=True)
        ]
        tokens, sizes = (np.concatenate(part) for part in zip(*drawn, strict=True))
        if len(self.parts) == 1:
            return tokens, sizes
        order = np.random.default_rng([self.seed, number, 1]).permutation(count)
        starts, ordered = (np.cumsum(sizes) - sizes)[order], sizes[order]
        shift = np.repeat(starts - (np.cumsum(ordered) - ordered), ordered)
        return tokens[np.arange(len(tokens)) + shift], ordered

    def _counts(self, pieces: int) -> list[int]:
        """Pieces of every source among the first ones of all."""
        counts, left, rest = [], pieces, sum(self.units)
        for unit in self.units:
            counts.append(left * unit // rest)
            left, rest = left - counts[-1], rest - unit
        return counts


class Epochs:
    """The numbers below `size`, all of them in one random order after the other."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.orders = max(TOGETHER // size, 1)
        # A block may end in the draw after the one that it begins in.
        self.drawn = lru_cache(maxsize=2)(self._drawn)

    def between(self, start: int, stop: int) -> np.ndarray:
        """int32 [stop - start], those at places from `start` on."""
        places = self.orders * self.size
        draws = range(start // places, -(-stop // places))
        found = [self.drawn(n)[max(start - n * places, 0) : stop - n * places] for n in draws]
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    def _drawn(self, number: int) -> np.ndarray:
        rows = np.tile(np.arange(self.size, dtype=np.int32), (self.orders, 1))
        return np.random.default_rng([self.seed, number]).permuted(rows, axis=1).reshape(-1)

"""Sources mixed by the tokens that are trained on, and batches of several row lengths in turn."""

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from rope_jax.experiment.recipe.order import Mixture
from rope_jax.experiment.recipe.packing import packed
from rope_jax.experiment.recipe.pieces import NO_TARGET, Pieces
from rope_jax.experiment.recipe.settings import RecipeConfig

FINENESS = 2**20  # of the shares that pieces are mixed by: the smallest is that many units


def mixed_rows(
    recipe: RecipeConfig, pieces: Sequence[Pieces], trained: Sequence[int], length: int
) -> grain.IterDataset:
    """Endless rows of one length, every source shuffled anew whenever it has been read through.

    Pieces are mixed, so the share of source s among them is made

        p_s  proportional to  weight_s * pieces_s / trained_s

    which makes its share of the trained tokens proportional to weight_s, however long its documents are.

    Args:
        recipe: its weights, packing and seed.
        pieces: of every source, those for this row length; may be empty.
        trained: targets of every source at all row lengths.
        length: tokens of a row.

    Returns:
        As `packed`.
    """
    used, shares, seeds = [], [], []
    for number, (source, part) in enumerate(zip(recipe.sources, pieces, strict=True)):
        if len(part):
            used.append(part)
            shares.append(source.weight * len(part) / trained[number])
            seeds.append(_seed(recipe.seed, length, number))
    units = [round(FINENESS * share / min(shares)) for share in shares]
    mean = sum(unit * part.tokens() / len(part) for unit, part in zip(units, used, strict=True)) / sum(units)
    seed = _seed(recipe.seed, length, len(pieces))
    return packed(Mixture(used, units, (*seeds, seed)), recipe.packing, length, mean, seed)


def by_length(recipe: RecipeConfig, pieces: Sequence[Pieces], lengths: Sequence[int], tokens: int) -> grain.IterDataset:
    """Batches of `tokens` tokens, each of rows of one length.

    A piece belongs to the shortest rows that hold it. The next batch is of the length whose trained tokens are
    furthest behind their share, the first one of equals: shares are those that the weights of the sources give.

    Args:
        recipe: its weights, packing and seed.
        pieces: of every source.
        lengths: of the rows, rising.
        tokens: of a batch, a multiple of every length.
    """
    trained = [part.trained() for part in pieces]
    total = sum(source.weight for source in recipe.sources)
    batches, shares = [], []
    for above, length in zip((0, *lengths[:-1]), lengths, strict=True):
        most = float("inf") if length == lengths[-1] else length
        parts = [part.within(above, most) for part in pieces]
        share = sum(
            source.weight / total * part.trained() / whole
            for source, part, whole in zip(recipe.sources, parts, trained, strict=True)
        )
        if share > 0:
            rows = mixed_rows(recipe, parts, trained, length)
            batches.append(rows.batch(tokens // length, drop_remainder=True).map_with_index(_numbered))
            shares.append(share)
    return batches[0] if len(batches) == 1 else FurthestBehind(batches, shares)


def _numbered(index: int, batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with the numbers of its rows, among all rows of their length."""
    rows = batch["tokens"].shape[0]
    return {**batch, "row": index * rows + np.arange(rows)}


class FurthestBehind(grain.IterDataset):
    """Takes from the parent whose count of targets is furthest below its share."""

    def __init__(self, parents: Sequence[grain.IterDataset], shares: Sequence[float]) -> None:
        super().__init__(parents)
        self.shares = tuple(shares)

    def __iter__(self) -> grain.DatasetIterator:
        return _FurthestBehindIterator([iter(parent) for parent in self.parents], self.shares)


class _FurthestBehindIterator(grain.DatasetIterator):
    def __init__(self, parents: Sequence[grain.DatasetIterator], shares: tuple[float, ...]) -> None:
        super().__init__(parents)
        self._shares = shares
        self._trained = [0] * len(shares)

    def __next__(self) -> Any:
        total = sum(self._trained)
        behind = [share * total - count for share, count in zip(self._shares, self._trained, strict=True)]
        chosen = behind.index(max(behind))
        element = next(self._parents[chosen])
        real = element["segments"] > 0
        self._trained[chosen] += int(np.count_nonzero(real & (element["tokens"][..., 1] != NO_TARGET)))
        return element

    def get_state(self) -> dict[str, Any]:
        return {"parents": [parent.get_state() for parent in self._parents], "trained": list(self._trained)}

    def set_state(self, state: dict[str, Any]) -> None:
        for parent, its in zip(self._parents, state["parents"], strict=True):
            parent.set_state(its)
        self._trained = list(state["trained"])


def _seed(seed: int, length: int, number: int) -> int:
    """A seed of its own for every order, so that none of them is a neighbour's next epoch."""
    return int(np.random.SeedSequence([seed, length, number]).generate_state(1)[0])

"""Every target of a source is trained once before any of them is trained again, and attention stays in its document."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

from rope_jax.experiment.data import Document
from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.corpus import Corpus, Source
from rope_jax.experiment.recipe.mixing import mixed_rows
from rope_jax.experiment.recipe.packing import longest_piece
from rope_jax.experiment.recipe.pieces import pieces_of
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from rope_jax.experiment.recipe.vocabulary import Vocabulary
from tests.experiment.recipe.texts import segments_of

LENGTH, ROWS = 8, 256  # of a block
BOS, END = 0, 1
LONG = 16 * LENGTH  # a piece where texts are concatenated
SIZES = [1, 2, 3, 5, *range(LENGTH - 2, LENGTH + 2), 2 * LENGTH, 30, *range(LONG - 2, LONG + 2), 2 * LONG + 1]
PACKINGS = ("best_fit", "concat", "none")


def numbered(
    *sizes: list[int], vocabulary: Vocabulary, weights: tuple[float, ...] = (1.0, 1.0), **changes: Any
) -> tuple[RecipeConfig, Corpus]:
    """A corpus with a source for every list of sizes, no token of which stands anywhere else."""
    recipe = RecipeConfig(tuple(SourceConfig(f"absent/{n}", weight=weights[n]) for n in range(len(sizes))), **changes)
    following, sources = 2, []
    for config, own in zip(recipe.sources, sizes, strict=True):
        documents = []
        for size in own:
            documents.append(Document(str(following), np.arange(following, following + size, dtype=np.int32)))
            following += size
        sources.append(Source(config, tuple(documents)))
    return recipe, Corpus(tuple(sources), vocabulary)


def pairs_of(corpus: Corpus, source: int) -> list[tuple[int, int]]:
    """What is read and what is to be said of it, for every target of a source."""
    found: list[tuple[int, int]] = []
    for document in corpus.sources[source].documents:
        opening, closing = ([] if one is None else [one] for one in (corpus.vocabulary.bos, corpus.vocabulary.end))
        framed = [*opening, *document.tokens.tolist(), *closing]
        found += itertools.pairwise(framed)
    return sorted(found)


def trained(batch, source):
    here = (batch.weights > 0) & (batch.sources == source + 1)
    return list(zip(batch.inputs[here].tolist(), batch.targets[here].tolist(), strict=True))


def filled(sizes: list[int], vocabulary: Vocabulary, packing: Any) -> list[int]:
    """Sizes of documents that make up one block, these among them."""
    framed = (vocabulary.bos is not None) + (vocabulary.end is not None)
    _, corpus = numbered([*sizes, 3], vocabulary=vocabulary)
    pieces = pieces_of(corpus.sources[0], vocabulary, longest_piece(packing, LENGTH), 1)
    if packing == "none":
        return [*sizes, 3, *[LENGTH - framed] * (ROWS - len(pieces))]
    left = ROWS * LENGTH - pieces.tokens()
    rest = [LENGTH] * (left // LENGTH - 1)
    ends = LENGTH + left % LENGTH
    rest += [ends] if ends == LENGTH else [ends // 2, ends - ends // 2]
    return [*sizes, 3, *(size - framed for size in rest)]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("vocabulary", [Vocabulary(2**20), Vocabulary(2**20, BOS, END), Vocabulary(2**20, end=END)])
def test_an_epoch_has_every_target_once(packing, vocabulary):
    recipe, corpus = numbered(filled(SIZES, vocabulary, packing), vocabulary=vocabulary, packing=packing)
    expected = pairs_of(corpus, 0)
    starts = np.asarray([document.tokens[0] for document in corpus.sources[0].documents])
    stream = batches(recipe, length=LENGTH, rows=1, corpus=corpus)
    resumed = batches(recipe, length=LENGTH, rows=1, corpus=corpus)
    orders = []
    for _ in range(2):
        resumed.set_state(json.loads(json.dumps(stream.get_state())))
        met: list[tuple[int, int]] = []
        while len(met) < len(expected):
            batch = next(stream)
            met += trained(batch, 0)
            # No segment holds tokens of two documents.
            for inputs, *_ in segments_of(batch):
                text = inputs[inputs > END]
                assert np.unique(np.searchsorted(starts, text, side="right")).size == (text.size > 0)
        assert sorted(met) == expected
        orders.append(met)
    # Taken up where the second epoch begins.
    again: list[tuple[int, int]] = []
    while len(again) < len(expected):
        again += trained(next(resumed), 0)
    stream.close(), resumed.close()
    assert orders[0] != orders[1] == again


@pytest.mark.parametrize("packing", PACKINGS)
def test_mixed_sources_are_each_read_through_before_they_are_read_again(packing):
    """Whatever the weights, targets of one source are trained equally often, but for those of the epoch it is in."""
    sizes = [2, 3, 30, 7, 8, 9] * 30, [200, 5]
    recipe, corpus = numbered(*sizes, vocabulary=Vocabulary(2**20), weights=(0.9, 0.1), packing=packing)
    longest = longest_piece(packing, LENGTH)
    pieces = [pieces_of(source, corpus.vocabulary, longest, n) for n, source in enumerate(corpus.sources, 1)]
    rows = iter(mixed_rows(recipe, pieces, [part.trained() for part in pieces], LENGTH))
    counts: list[dict[int, int]] = [dict.fromkeys((target for _, target in pairs_of(corpus, s)), 0) for s in (0, 1)]
    seen = blocks = 0
    while blocks < 5:
        before, row = blocks, next(rows)
        blocks = rows.get_state()["parent"]["next_index"]
        if blocks > before:
            # The row is the first one of the next block.
            for count in counts:
                assert max(count.values()) - min(count.values()) <= 1
        for source in (0, 1):
            targets = row["tokens"][(row["segments"] > 0) & (row["tokens"][:, 2] == source + 1)][:, 1]
            for target in targets[targets >= 0].tolist():
                counts[source][target] += 1
                seen += 1
    assert seen > 1000 and max(counts[1].values()) > 1

"""The batches of a recipe, in an order that its seed alone fixes and that goes on exactly where it was left."""

from dataclasses import replace

import grain

from rope_jax.experiment.recipe.batch import Finish
from rope_jax.experiment.recipe.corpus import Corpus, read_corpus
from rope_jax.experiment.recipe.mixing import by_length
from rope_jax.experiment.recipe.packing import longest_piece
from rope_jax.experiment.recipe.pieces import pieces_of
from rope_jax.experiment.recipe.rules import bucket_lengths, check_batches
from rope_jax.experiment.recipe.settings import RecipeConfig

AHEAD = 4  # batches that a thread makes while the step runs


def batches(
    recipe: RecipeConfig,
    *,
    length: int,
    rows: int,
    process: int = 0,
    processes: int = 1,
    target_length: int | None = None,
    corpus: Corpus | None = None,
) -> grain.DatasetIterator:
    """Endless batches of a recipe.

    Every process makes the whole batch and keeps every `processes`-th row of it, so the batches of all processes
    together, and the state, are the same for any number of them.

    Args:
        recipe: what is read, and how it becomes rows.
        length: tokens of a row; a multiple of every bucket.
        rows: of the whole batch, at this length; buckets have as many more as they are shorter.
        process, processes: which part of a batch this process trains, of how many.
        target_length: what PoSE aims at, in tokens; for a recipe with `pose_chunks` only.
        corpus: the documents, where they are read already or a part of them is held out.

    Returns:
        An iterator of `Batch` that prefetches on a thread. `get_state` gives a dictionary that JSON can hold, which
        `set_state` of an iterator with the same recipe, corpus, length and rows goes on from; orbax stores the
        iterator itself. `close` ends the thread.

    Raises:
        ValueError: a broken rule, or nothing to read.

    Example:
        >>> stream = batches(RecipeConfig(seed=1), length=64, rows=4)
        >>> next(stream).inputs.shape
        (4, 64)
        >>> stream.close()
    """
    check_batches(recipe, length, rows, process, processes, target_length)
    corpus = read_corpus(recipe) if corpus is None else corpus
    read, named = [source.config for source in corpus.sources], list(recipe.sources)
    if [replace(one, weight=1.0) for one in read] != [replace(one, weight=1.0) for one in named]:
        raise ValueError(
            f"`corpus` must be of the recipe's own sources, weights aside; got {read} for {named}. Read this recipe's."
        )
    lengths = bucket_lengths(recipe, length)
    longest = longest_piece(recipe.packing, length)
    pieces = [pieces_of(source, corpus.vocabulary, longest, number) for number, source in enumerate(corpus.sources, 1)]
    stream = by_length(recipe, pieces, lengths, rows * length).map(Finish(recipe, process, processes, target_length))
    return iter(grain.experimental.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=AHEAD))

"""Documents kept from training, and windows of them to evaluate on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rope_jax.experiment import data
from rope_jax.experiment.data import Document
from rope_jax.experiment.recipe.corpus import Corpus, Source, read_corpus, text_of
from rope_jax.experiment.recipe.settings import RecipeConfig


def held_out(
    recipe: RecipeConfig, tokens: int, seed: int, *, longest: int = 1, corpus: Corpus | None = None
) -> tuple[Corpus, tuple[Document, ...]]:
    """Splits the documents of a recipe into those that are trained on and those that are evaluated.

    Texts are drawn in the order that `seed` shuffles them to, among those that hold a longest window and its last
    target, until `tokens` are reached. A text counts once, wherever it is found again: what is held out of one source
    is held out of all. A corpus of one text is cut instead, and its last `tokens` are held out.

    Args:
        recipe: names the sources.
        tokens: least size of the part that is evaluated.
        seed: of the draw.
        longest: tokens of the longest window.
        corpus: the documents, where they are read already.

    Returns:
        The corpus to train on, for `batches`, and the documents to evaluate.

    Raises:
        ValueError: too little text, or a source that would be left empty; the message holds the numbers.
    """
    if longest < 1:
        raise ValueError(f"`longest` must be at least 1; got {longest}. It is the tokens of a window.")
    corpus = read_corpus(recipe) if corpus is None else corpus
    found = {text_of(document): document for source in corpus.sources for document in source.documents}
    total = sum(document.tokens.size for document in found.values())
    if tokens < longest + 1 or 2 * tokens > total:
        raise ValueError(
            f"`tokens` must hold a window of {longest} tokens and its last target, and be at most half of the text; "
            f"got {tokens} of {total} tokens. Change `evaluate.tokens`, or give more text."
        )
    if len(found) == 1:
        return _cut(corpus, next(iter(found.values())), tokens)
    keys = list(found)
    chosen: set[str] = set()
    reached = 0
    for index in np.random.default_rng(seed).permutation(len(keys)).tolist():
        size = found[keys[index]].tokens.size
        if reached >= tokens:
            break
        if size > longest:
            chosen.add(keys[index])
            reached += size
    if reached < tokens or 2 * reached > total:
        raise ValueError(
            f"The text must leave room for {tokens} held-out tokens in documents of at least {longest + 1} tokens, and "
            f"as much for training; got {len(found)} documents, {total} tokens, of which {reached} would be held out. "
            "Give more text, hold out less, or shorten the windows."
        )
    return _without(corpus, chosen), tuple(document for key, document in found.items() if key in chosen)


def _without(corpus: Corpus, chosen: set[str]) -> Corpus:
    sources = []
    for number, source in enumerate(corpus.sources):
        kept = tuple(document for document in source.documents if text_of(document) not in chosen)
        if not kept:
            raise ValueError(
                f"`data.sources[{number}]` must keep documents to train on; got {len(source.documents)}, all of which "
                "would be held out. Hold out less, or give that source more text."
            )
        sources.append(replace(source, documents=kept))
    return replace(corpus, sources=tuple(sources))


def _cut(corpus: Corpus, whole: Document, tokens: int) -> tuple[Corpus, tuple[Document, ...]]:
    cut = whole.tokens.size - tokens
    head, tail = Document(f"{whole.name}[:{cut}]", whole.tokens[:cut]), whole.tokens[cut:]
    sources: list[Source] = [replace(source, documents=(head,)) for source in corpus.sources]
    return replace(corpus, sources=tuple(sources)), (Document(f"{whole.name}[{cut}:]", tail),)


def evaluation_windows(documents: Sequence[Document], length: int, count: int) -> np.ndarray:
    """Windows of one length out of held-out documents, spread evenly over them.

    Args:
        documents: the held-out part.
        length: tokens that are read.
        count: windows.

    Returns:
        int32 [count, length + 1], each inside one document.

    Raises:
        ValueError: fewer places where such a window can end than windows.
    """
    places = sum(max(document.tokens.size - length, 0) for document in documents)
    if not 1 <= count <= places:
        raise ValueError(
            f"`count` must be from 1 to the {places} windows of {length + 1} tokens in {len(documents)} documents; got "
            f"{count}. Lower `evaluate.windows`, hold out more text, or shorten the windows."
        )
    return data.evaluation_windows(documents, length, count)

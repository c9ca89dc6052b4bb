"""The documents of a recipe, source by source, in the tokens that are trained on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rope_jax.experiment.data import Document, corpus_digest
from rope_jax.experiment.recipe.rules import check_recipe
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from rope_jax.experiment.recipe.sources import read_documents
from rope_jax.experiment.recipe.vocabulary import Vocabulary, read_vocabulary


@dataclass(frozen=True, eq=False)
class Source:
    """The documents of one source that lie within its bounds.

    Args:
        config: where they are from.
        documents: their tokens [size], uint8 for bytes and int32 otherwise; nothing frames them.
        left_out: how many were outside the bounds.
    """

    config: SourceConfig
    documents: tuple[Document, ...]
    left_out: int = 0


@dataclass(frozen=True, eq=False)
class Corpus:
    """All sources of a recipe and their vocabulary.

    Raises:
        ValueError: a source none of whose documents has a target.
    """

    sources: tuple[Source, ...]
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        framed = frames_of(self.vocabulary)
        for number, source in enumerate(self.sources):
            if all(document.tokens.size + framed < 2 for document in source.documents):
                raise ValueError(
                    f"`data.sources[{number}]` must hold documents of at least 2 tokens, what frames them counted, so "
                    f"that there is a target; got {len(source.documents)} of 1 in {source.config.path!r}. Give more "
                    "text."
                )

    @property
    def digest(self) -> str:
        """Sha256 of the documents, source by source, and of what frames them: that a position in the data is of."""
        digest = hashlib.sha256(f"{self.vocabulary.bos} {self.vocabulary.end}".encode())
        for source in self.sources:
            digest.update(corpus_digest(source.documents).encode())
        return digest.hexdigest()


def frames_of(vocabulary: Vocabulary) -> int:
    """Tokens that frame a document."""
    return (vocabulary.bos is not None) + (vocabulary.end is not None)


def text_of(document: Document) -> str:
    """What makes two documents the same: their tokens, whatever their names."""
    return hashlib.sha256(document.tokens.tobytes()).hexdigest()


def read_corpus(recipe: RecipeConfig) -> Corpus:
    """Reads all documents of a recipe.

    Raises:
        ValueError: a rule broken, nothing to read, a source with no document within its bounds or without a target,
            or what the tokenizer has no token for.

    Example:
        >>> corpus = read_corpus(RecipeConfig((SourceConfig(shortest=20_000, longest=40_000),)))
        >>> all(20_000 <= document.tokens.size <= 40_000 for document in corpus.sources[0].documents)
        True
    """
    check_recipe(recipe)
    vocabulary = read_vocabulary(recipe)
    sources = []
    for number, source in enumerate(recipe.sources):
        setting = f"data.sources[{number}]"
        documents = [vocabulary.encoded(document) for document in read_documents(source, setting)]
        sources.append(_bounded(source, documents, setting))
    return Corpus(tuple(sources), vocabulary)


def _bounded(source: SourceConfig, documents: Sequence[Document], setting: str) -> Source:
    longest = float("inf") if source.longest is None else source.longest
    kept = tuple(document for document in documents if source.shortest <= document.tokens.size <= longest)
    if not kept:
        sizes = [document.tokens.size for document in documents]
        found = f"{len(sizes)} documents of {min(sizes)} to {max(sizes)} tokens" if sizes else "no document"
        asked = f"{source.shortest} or more" if source.longest is None else f"{source.shortest} to {source.longest}"
        raise ValueError(
            f"`{setting}` must hold documents of {asked} tokens; got {found} in {source.path!r}. Change `shortest` and "
            "`longest`, or the path."
        )
    return Source(source, kept, len(documents) - len(kept))

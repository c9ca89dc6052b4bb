"""Documents cut into pieces that fit a row; every token of a piece carries its target with it."""

from dataclasses import dataclass, field, replace

import numpy as np

from rope_jax.experiment.data import Document
from rope_jax.experiment.recipe.corpus import Source, frames_of
from rope_jax.experiment.recipe.vocabulary import Vocabulary

NO_TARGET = -1


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of a source's documents by number, as a source of `grain`.

    A document of n tokens, framed, has n - 1 targets. It is cut at multiples of the longest piece, so a longer one
    gives several, each of which counts positions from 0 and ends on the target that opens the next. The last token has
    no target; where it would stand alone in a piece it is left out, being the target of the piece before it already.

    Args:
        documents: their tokens, nothing around them.
        vocabulary: what frames them.
        number: of the source, from 1.
        document, start, stop: [pieces], which tokens of which framed document a piece holds.
    """

    documents: tuple[Document, ...]
    vocabulary: Vocabulary
    number: int
    document: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    sizes: np.ndarray = field(repr=False)
    """[documents], framed."""

    def __len__(self) -> int:
        return int(self.document.size)

    def __getitem__(self, index: int) -> np.ndarray:
        """int32 [size, 3]: the token, its target or -1, and the source's number."""
        document, start, stop = (int(part[index]) for part in (self.document, self.start, self.stop))
        span = self._span(document, start, min(stop + 1, int(self.sizes[document])))
        tokens = np.empty((stop - start, 3), np.int32)
        tokens[:, 0] = span[: stop - start]
        tokens[-1, 1] = NO_TARGET
        tokens[: span.size - 1, 1] = span[1:]
        tokens[:, 2] = self.number
        return tokens

    def tokens(self) -> int:
        """Tokens of all pieces."""
        return int(np.sum(self.stop - self.start))

    def trained(self) -> int:
        """Targets of all pieces."""
        return int(np.sum(np.minimum(self.stop, self.sizes[self.document] - 1) - self.start))

    def within(self, above: int, most: float) -> "Pieces":
        """The pieces of more than `above` and at most `most` tokens."""
        size = self.stop - self.start
        kept = (size > above) & (size <= most)
        return replace(self, document=self.document[kept], start=self.start[kept], stop=self.stop[kept])

    def _span(self, document: int, start: int, stop: int) -> np.ndarray:
        """Tokens of a framed document."""
        opening, closing = self.vocabulary.bos, self.vocabulary.end
        ahead = int(opening is not None)
        parts = [self.documents[document].tokens[max(start - ahead, 0) : stop - ahead]]
        if opening is not None and start == 0:
            parts.insert(0, np.asarray([opening], np.int32))
        if closing is not None and stop == self.sizes[document]:
            parts.append(np.asarray([closing], np.int32))
        return np.concatenate(parts) if len(parts) > 1 else parts[0]


def pieces_of(source: Source, vocabulary: Vocabulary, longest: int, number: int) -> Pieces:
    """Cuts the documents of a source.

    Args:
        source: the documents.
        vocabulary: what frames them.
        longest: tokens of a piece, at most.
        number: of the source, from 1.
    """
    framed = frames_of(vocabulary)
    sizes = np.asarray([document.tokens.size + framed for document in source.documents], np.int64)
    counts = -(-np.maximum(sizes - 1, 0) // longest)
    document = np.repeat(np.arange(sizes.size), counts)
    start = (np.arange(document.size) - np.repeat(np.cumsum(counts) - counts, counts)) * longest
    stop = np.minimum(start + longest, sizes[document])
    return Pieces(source.documents, vocabulary, number, document, start, stop, sizes)

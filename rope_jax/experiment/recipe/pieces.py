"""Documents cut into pieces that fit a row; every token of a piece carries its target with it."""

from dataclasses import dataclass, field, replace

import numpy as np

from rope_jax.experiment.data import Document
from rope_jax.experiment.recipe.corpus import Source, frames_of
from rope_jax.experiment.recipe.vocabulary import Vocabulary

NO_TARGET = -1


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of a source's documents by number.

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

    def gather(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The chosen pieces behind each other.

        Args:
            chosen: [pieces] their numbers.

        Returns:
            int32 [sum of sizes, 3]: the token, its target or -1, and the source's number; int64 [pieces], the sizes.
        """
        document, start, stop = self.document[chosen], self.start[chosen], self.stop[chosen]
        sizes, ended = stop - start, stop == self.sizes[document]
        ends = np.cumsum(sizes)
        opening, closing = self.vocabulary.bos, self.vocabulary.end
        ahead = int(opening is not None)
        tokens = np.empty((int(sizes.sum()), 3), np.int32)
        text = np.ones(len(tokens), bool)
        for frame, at in ((opening, (ends - sizes)[start == 0]), (closing, ends[ended] - 1)):
            if frame is not None:
                tokens[at, 0] = frame
                text[at] = False
        spans = zip(document.tolist(), np.maximum(start - ahead, 0).tolist(), (stop - ahead).tolist(), strict=True)
        # A slice ends with the document, where the closing token follows.
        parts = [self.documents[one].tokens[low:high] for one, low, high in spans]
        tokens[text, 0] = np.concatenate(parts) if parts else 0
        tokens[:-1, 1] = tokens[1:, 0]
        tokens[ends[ended] - 1, 1] = NO_TARGET
        # A piece that is cut off ends on the target that opens the next.
        following = zip(document[~ended].tolist(), (stop[~ended] - ahead).tolist(), strict=True)
        tokens[ends[~ended] - 1, 1] = [self._at(one, place) for one, place in following]
        tokens[:, 2] = self.number
        return tokens, sizes

    def _at(self, document: int, place: int) -> int:
        """A token of a document, or what closes it."""
        tokens, closing = self.documents[document].tokens, self.vocabulary.end
        return int(tokens[place]) if closing is None or place < tokens.size else closing

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

"""What a run, or a stage of it, has been trained on: the numbers that its record keeps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rope_jax.experiment.recipe.batch import Batch
from rope_jax.experiment.recipe.context import ContextHistogram
from rope_jax.experiment.recipe.corpus import Corpus, Source, frames_of, text_of
from rope_jax.experiment.recipe.settings import RecipeConfig


class TrainedRecord:
    """Counts batches: their row lengths, padding, targets by source and by context.

    The achieved share of a source is that of the trained targets, which its weight asks for. A source with less text
    than its share is read again, in another order, so it has been read targets / targets of its documents times.

    Args:
        recipe: its sources and their weights.
        corpus: the documents that are trained on; with it, what a source holds and how often it was read are recorded:
            `repeated` of its documents have the text of another one there, `left_out` were outside its bounds.

    Example:
        >>> record = TrainedRecord(RecipeConfig())
        >>> record.as_dict()["sources"]
        [{'path': 'stdlib', 'shortest': 1, 'longest': None, 'asked': 1.0, 'achieved': 0.0, 'targets': 0}]
    """

    def __init__(self, recipe: RecipeConfig, corpus: Corpus | None = None) -> None:
        total = sum(source.weight for source in recipe.sources)
        self.sources = recipe.sources
        self.asked = tuple(source.weight / total for source in recipe.sources)
        self.held = [{} for _ in recipe.sources] if corpus is None else [_held(corpus, one) for one in corpus.sources]
        self.targets = np.zeros(len(recipe.sources), np.int64)
        self.places = 0
        self.padding = 0
        self.lengths: dict[int, int] = {}
        self.context = ContextHistogram()

    def add(self, batch: Batch) -> None:
        """Counts a batch, or a process's part of it."""
        sources = batch.sources[batch.weights > 0]
        self.targets += np.bincount(sources, minlength=len(self.targets) + 1)[1:]
        self.places += batch.segments.size
        self.padding += int(np.count_nonzero(batch.segments == 0))
        length = batch.segments.shape[1]
        self.lengths[length] = self.lengths.get(length, 0) + 1
        self.context.add(batch)

    def merge(self, other: "TrainedRecord") -> "TrainedRecord":
        """Adds what another process counted of the same batches; returns itself."""
        self.targets += other.targets
        self.places += other.places
        self.padding += other.padding
        self.context.merge(other.context)
        return self

    def as_dict(self) -> dict[str, Any]:
        """All counts, as JSON can hold them."""
        trained = int(self.targets.sum())
        rows = zip(self.sources, self.asked, self.targets.tolist(), self.held, strict=True)
        return {
            "places": self.places,
            "padding": self.padding,
            "targets": trained,
            "batches_by_length": {str(length): count for length, count in sorted(self.lengths.items())},
            "context": self.context.as_dict(),
            "sources": [
                {
                    "path": source.path,
                    "shortest": source.shortest,
                    "longest": source.longest,
                    "asked": asked,
                    "achieved": targets / max(trained, 1),
                    "targets": targets,
                    **held,
                    **({"epochs": targets / held["targets_an_epoch"]} if held else {}),
                }
                for source, asked, targets, held in rows
            ],
        }

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Goes on from what `as_dict` gave for the same recipe."""
        self.targets[:] = [source["targets"] for source in counts["sources"]]
        self.places, self.padding = counts["places"], counts["padding"]
        self.lengths = {int(length): count for length, count in counts["batches_by_length"].items()}
        self.context = ContextHistogram.from_dict(counts["context"])


def _held(corpus: Corpus, source: Source) -> dict[str, int]:
    """What a source holds."""
    sizes = [document.tokens.size + frames_of(corpus.vocabulary) for document in source.documents]
    return {
        "documents": len(sizes),
        "repeated": len(sizes) - len(set(map(text_of, source.documents))),
        "left_out": source.left_out,
        "targets_an_epoch": sum(sizes) - len(sizes),
    }

"""The settings of a recipe, with their defaults."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SourceConfig:
    """Where documents come from, which of them are kept, and what share of the training they make up."""

    path: str = "stdlib"
    """"stdlib" (the running Python's own modules), a file, a glob, or a folder that `datasets` wrote or of Parquet."""
    weight: float = 1.0
    """Share of the trained tokens, relative to the other sources' weights."""
    shortest: int = 1
    """Tokens of the shortest document that is kept; shorter ones are left out."""
    longest: int | None = None
    """Tokens of the longest document that is kept; longer ones are left out, never cut."""
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """Text is a document a file, the others a document a line or record. "auto" goes by the ending, and refuses
    what looks binary or packed."""
    field: str = "text"
    """The field of a record that holds its text."""


@dataclass(frozen=True)
class RecipeConfig:
    """Sources and how their documents become rows."""

    sources: tuple[SourceConfig, ...] = (SourceConfig(),)
    packing: Literal["best_fit", "concat", "none"] = "best_fit"
    """Whole pieces side by side where they fit best, one long text cut into rows, or a piece a row with padding."""
    masked: bool = True
    """Whether documents of a row are segments of their own; otherwise positions run on through the row."""
    pose_chunks: int = 0
    """Chunks of a row that PoSE moves apart, within the target length; 0 leaves positions as they are."""
    seed: int = 0
    tokenizer: str = ""
    """A folder with a tokenizer.json, that file, or a .gguf file; empty: that of a run's checkpoint, else bytes."""
    end_token: str = "auto"
    """What closes a document: a token by name, "auto" (the tokenizer's own, if it has one) or "none"."""
    buckets: tuple[int, ...] = ()
    """Row lengths below the full one for shorter documents; all rows of a batch have one length."""

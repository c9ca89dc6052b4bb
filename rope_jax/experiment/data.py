"""Text as token ids: a corpus, its held-out part, training batches by step, evaluation windows.

A document is read as its bytes, one token each; `encoding.encoded` turns it into the tokens of a checkpoint.
"""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STDLIB_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings"})
STDLIB_SMALLEST = 201  # bytes; shorter modules are licence lines and re-exports


@dataclass(frozen=True)
class Document:
    """One file: its name and its token ids [size]; as read, its bytes, uint8."""

    name: str
    tokens: np.ndarray


def load_corpus(source: str) -> tuple[Document, ...]:
    """Reads the corpus as bytes: one document a file, sorted by name, so equal on every run of one machine.

    Args:
        source: "stdlib", which is the `*.py` of the running Python's standard library without tests, idlelib, lib2to3,
            encodings, installed packages and files of at most 200 bytes; or a file; or a glob (`**` crosses folders).

    Returns:
        The documents, none of them empty.

    Raises:
        ValueError: nothing found, or nothing in it.

    Example:
        >>> any(document.name == "json/decoder.py" for document in load_corpus("stdlib"))
        True
    """
    if source == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
        files = {name: path for name, path in files.items() if not STDLIB_LEFT_OUT & set(Path(name).parts[:-1])}
        smallest = STDLIB_SMALLEST
    else:
        if Path(source).is_dir():
            raise ValueError(
                f"`data.source` must lead to files that hold text; got the folder {source!r}. Name a file in it, or "
                f"all of them as a glob in quotes: '{source.rstrip('/')}/*'."
            )
        found = [source] if Path(source).is_file() else glob.glob(source, recursive=True)
        files = {Path(name).as_posix(): Path(name) for name in found if Path(name).is_file()}
        smallest = 1
    documents = [Document(name, np.frombuffer(files[name].read_bytes(), np.uint8)) for name in sorted(files)]
    kept = tuple(document for document in documents if document.tokens.size >= smallest)
    if not kept:
        there = "where no file is" if not files else "an empty file" if len(files) == 1 else f"{len(files)} empty files"
        raise ValueError(
            f"`data.source` must lead to files that hold text; got {source!r}, {there}. Give an existing file "
            '(--text FILE), a glob in quotes, or "stdlib".'
        )
    return kept


def windows_line_ends(documents: Sequence[Document]) -> tuple[str, ...]:
    """A line about the documents, as bytes, whose lines end as on Windows; none where none do."""
    many = sum(b"\r\n" in document.tokens.tobytes() for document in documents)
    if not many:
        return ()
    return (f"{many} of {len(documents)} files of the text have Windows line ends, which the model reads as they are",)


def corpus_digest(documents: Sequence[Document]) -> str:
    """Sha256 (64 hex digits) of the names and the token ids of all documents: what "the same text" means.

    Example:
        >>> corpus_digest([Document("a", np.zeros(1, np.uint8))])[:8]
        '0b030b86'
    """
    digest = hashlib.sha256()
    for document in documents:
        name = os.fsencode(document.name)
        # With the sizes, so that no token can move from one file to the next.
        digest.update(f"{len(name)} {document.tokens.size} ".encode())
        digest.update(name)
        digest.update(document.tokens.tobytes())
    return digest.hexdigest()


def split_corpus(
    documents: Sequence[Document], held_out_tokens: int, longest: int, seed: int
) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Splits a corpus into (train, held_out) without any file in both.

    Files are drawn in the order that `seed` shuffles them to, among those that hold a longest window and its last
    target, until `held_out_tokens` are reached. A corpus of one file is cut instead: its last `held_out_tokens` are
    held out.

    Args:
        documents: the corpus.
        held_out_tokens: least size of the held-out part, at most half of the corpus.
        longest: longest evaluated length, in tokens.
        seed: of the shuffle.

    Raises:
        ValueError: the corpus is too short; the message holds the numbers.
    """
    sizes = [document.tokens.size for document in documents]
    total = sum(sizes)
    if 2 * held_out_tokens > total:
        raise ValueError(
            f"`data.held_out_tokens` must be at most half of the corpus; got {held_out_tokens} of {total} tokens. "
            "Lower it, or give more text."
        )
    if held_out_tokens < longest + 1:
        raise ValueError(
            f"`data.held_out_tokens` must hold a window of {longest} tokens and its last target; got {held_out_tokens} "
            "tokens. Raise it, or lower the longest length."
        )
    if len(documents) == 1:
        (whole,) = documents
        cut = total - held_out_tokens
        head, tail = Document(f"{whole.name}[:{cut}]", whole.tokens[:cut]), whole.tokens[cut:]
        return (head,), (Document(f"{whole.name}[{cut}:]", tail),)
    chosen: set[int] = set()
    for index in np.random.default_rng(seed).permutation(len(documents)).tolist():
        if sum(sizes[i] for i in chosen) >= held_out_tokens:
            break
        if sizes[index] >= longest + 1:
            chosen.add(index)
    reached = sum(sizes[i] for i in chosen)
    if reached < held_out_tokens or total - reached < reached:
        raise ValueError(
            f"The corpus must leave room for {held_out_tokens} held-out tokens in files of at least {longest + 1} "
            f"tokens, and as much for training; got {len(documents)} files of {min(sizes)} to {max(sizes)}, {total} "
            f"in all, of which {reached} would be held out. Give more text, or lower `data.held_out_tokens` or "
            "the lengths."
        )
    train = tuple(document for index, document in enumerate(documents) if index not in chosen)
    return train, tuple(documents[index] for index in sorted(chosen))


class Windows:
    """Windows of `length + 1` tokens, side by side in each file; the last token of one is the first of the next."""

    def __init__(self, documents: Sequence[Document], length: int) -> None:
        self.documents = tuple(documents)
        self.length = length
        counts = [max(document.tokens.size - 1, 0) // length for document in self.documents]
        self.ends = np.cumsum(np.asarray(counts, np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.ends.size else 0

    def __getitem__(self, index: int) -> np.ndarray:
        """int32 [length + 1]."""
        file = int(np.searchsorted(self.ends, index, side="right"))
        start = (index - int(self.ends[file - 1] if file else 0)) * self.length
        return self.documents[file].tokens[start : start + self.length + 1].astype(np.int32)


def training_batches(documents: Sequence[Document], length: int, batch: int, seed: int) -> Any:
    """Shuffled batches of windows, indexed by step: the same step gives the same batch, whatever ran before.

    Args:
        documents: the training part.
        length: tokens that the model reads.
        batch: rows.
        seed: of the shuffle, which is another one in every epoch.

    Returns:
        A `grain.MapDataset`; `batches[step]` is int32 [batch, length + 1], each row inside one file.

    Raises:
        ValueError: fewer windows than rows.
    """
    import grain

    windows = Windows(documents, length)
    if len(windows) < batch:
        longest = max((document.tokens.size for document in documents), default=0)
        raise ValueError(
            f"The training text must hold {batch} windows of {length + 1} tokens; got {len(windows)} in "
            f"{len(documents)} files of at most {longest} tokens. Give more text, or lower the length or the batch."
        )
    return grain.MapDataset.source(windows).seed(seed).shuffle().repeat(None).batch(batch, drop_remainder=True)


def evaluation_windows(documents: Sequence[Document], longest: int, count: int, *, tail: int = 1) -> np.ndarray:
    """Windows whose ends are spread evenly over all places where a longest window can end.

    A shorter window is a suffix, `windows[:, -(length + 1):]`, so windows of every length end on the same targets.

    Args:
        documents: the held-out part.
        longest: longest evaluated length, in tokens.
        count: windows.
        tail: targets at the end that are scored; windows end at least that far apart, so no target counts twice.

    Returns:
        int32 [count, longest + 1].

    Raises:
        ValueError: the text is too short for that many.
    """
    places = np.cumsum([max(document.tokens.size - longest, 0) for document in documents])
    total = int(places[-1]) if places.size else 0
    if total < count * tail:
        files = f"{len(documents)} file{'s' * (len(documents) != 1)}"
        most = max((document.tokens.size for document in documents), default=0)
        fit = "too short for one" if total == 0 else f"where {total // tail} fit"
        raise ValueError(
            f"The text that is evaluated must hold {count} windows of {longest + 1} tokens that end {tail} tokens "
            f"apart; got {files} of at most {most} tokens, {fit}. Give more text, or lower `evaluate.windows` or the "
            "largest of `sweep.multiples`; where weights are trained, `data.held_out_tokens` may also be raised."
        )
    rows = []
    for place in ((2 * np.arange(count) + 1) * total // (2 * count)).tolist():
        file = int(np.searchsorted(places, place, side="right"))
        start = place - int(places[file - 1] if file else 0)
        rows.append(documents[file].tokens[start : start + longest + 1])
    return np.stack(rows).astype(np.int32)


def opened(windows: np.ndarray, bos: int | None) -> np.ndarray:
    """The same windows [count, length + 1] with BOS for their first token; as they are where there is no BOS.

    The first token of a window is read and never a target, so neither the targets nor the length change.
    """
    if bos is None:
        return windows
    begun = windows.copy()
    begun[:, 0] = bos
    return begun

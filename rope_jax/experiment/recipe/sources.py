"""Documents out of files: text, JSON lines, Parquet and folders of Hugging Face datasets, each as its bytes."""

import errno
import glob
import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from rope_jax.experiment.data import Document, load_corpus
from rope_jax.experiment.recipe.formats import from_lines, from_tables
from rope_jax.experiment.recipe.settings import SourceConfig

SAVED = "state.json"  # stands in every folder that `datasets` wrote with save_to_disk
SPLITS = "dataset_dict.json"  # stands above such folders
NAMES = ("train", "validation", "test")  # of splits, in names of files and folders
KINDS = MappingProxyType({".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"})
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def read_documents(source: SourceConfig, setting: str) -> tuple[Document, ...]:
    """All documents of a source as their bytes, sorted by file and then as they stand there.

    A file is read once, however many names lead to it. Everything is held in memory: this is for corpora of some
    gigabytes.

    Args:
        source: where they are.
        setting: the source's name in messages, such as `data.sources[0]`.

    Returns:
        Documents named by file, or by file and line or record; their tokens are uint8.

    Raises:
        ValueError: no file there, files of no kind or of several, a file that is not of its kind, a record without the
            field or with no text in it.
        OSError: a file that may not be read.
        ImportError: Parquet without `datasets`.
    """
    if source.path == "stdlib":
        if source.format not in ("auto", "text"):
            raise ValueError(f'`{setting}.format` must be "text" for "stdlib"; got {source.format!r}. Leave it out.')
        return load_corpus("stdlib")
    paths = _paths(source.path, setting)
    kind: str = source.format
    if kind == "auto":
        kind = "parquet" if Path(source.path).is_dir() else _kind(paths, setting)
    if not paths or (kind != "parquet" and Path(source.path).is_dir()):
        raise ValueError(
            f"`{setting}.path` must lead to files; got {source.path!r}, {_instead(Path(source.path))}. Give a file, a "
            "glob in quotes, or the folder of one split."
        )
    if kind == "parquet":
        return tuple(from_tables(paths, source.field, setting))
    if kind == "jsonl":
        return tuple(document for path in paths for document in from_lines(path, source.field, setting))
    return tuple(_text(path, source.format, setting) for path in paths)


def _paths(path: str, setting: str) -> tuple[Path, ...]:
    """The files that a path means; of a folder, those of Parquet, or itself where it is a saved dataset."""
    folder = Path(path)
    if folder.is_dir():
        if (folder / SAVED).is_file():
            return (folder,)
        found = _of_one_split(folder, setting)
    else:
        found = [folder] if folder.is_file() else sorted(map(Path, glob.glob(path, recursive=True)))
    once: dict[Path, Path] = {}
    for file in found:
        if file.is_file():
            once.setdefault(file.resolve(), file)
        elif not file.is_dir() and not _loops(file):
            raise ValueError(
                f"`{setting}.path` must lead to files; got {file.as_posix()!r}, a link to nothing or what is no file. "
                "Delete it there, or give a narrower glob."
            )
    return tuple(once.values())


def _of_one_split(folder: Path, setting: str) -> list[Path]:
    """The Parquet files of a folder."""
    found = sorted(folder.rglob("*.parquet"))
    words = {word for file in found for word in re.split(r"\W|_", str(file.relative_to(folder)))}
    splits = [name for name in NAMES if name in words]
    if len(splits) > 1:
        raise ValueError(
            f"`{setting}.path` must lead to one split; got {folder.as_posix()!r} with {' and '.join(splits)} in it. "
            "Give the folder of one, or its files as a glob in quotes."
        )
    return found


def _loops(file: Path) -> bool:
    """Whether a name leads through too many links: in a folder that a link inside it leads back to."""
    try:
        file.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _instead(path: Path) -> str:
    """What is there in place of files."""
    if not path.is_dir():
        return "where no file is"
    return "a folder of splits" if (path / SPLITS).is_file() else "a folder without Parquet files"


def _kind(files: Sequence[Path], setting: str) -> str:
    """The kind of files by their endings."""
    endings = {file.suffix.lower(): file for file in files}
    for ending in PACKED:
        if ending in endings:
            raise ValueError(
                f"`{setting}.path` must lead to files that are not packed; got {endings[ending].as_posix()!r}. Unpack "
                "it first."
            )
    named = {KINDS.get(ending, "text"): file.as_posix() for ending, file in endings.items()}
    if len(named) > 1:
        raise ValueError(
            f'`{setting}.format` must be given where files are of several kinds; got "auto" for {named}. Give a '
            'narrower glob, or write format = "text" for a document a file.'
        )
    if set(endings) == {".json"}:
        raise ValueError(
            f'`{setting}.format` must be given for .json; got "auto" for {endings[".json"].as_posix()!r}. Write '
            'format = "jsonl" for a record a line, or "text" for a document a file.'
        )
    return next(iter(named), "text")


def _text(file: Path, format: str, setting: str) -> Document:
    """A file as a document."""
    content = file.read_bytes()
    zeros = content.count(0)
    if zeros and format == "auto":
        raise ValueError(
            f"`{setting}.path` must lead to text; got {file.as_posix()!r} with {zeros} zero bytes, which is binary, or "
            'text in UTF-16. Convert it, leave it out, or write format = "text" for its bytes as they are.'
        )
    return Document(file.as_posix(), np.frombuffer(content, np.uint8))

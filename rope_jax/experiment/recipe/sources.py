"""Documents out of files: text, JSON lines, Parquet and folders of Hugging Face datasets, each as its bytes."""

import glob
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rope_jax.experiment.data import Document, load_corpus
from rope_jax.experiment.recipe.settings import SourceConfig

SAVED = "state.json"  # stands in every folder that `datasets` wrote with save_to_disk
SPLITS = "dataset_dict.json"  # stands above such folders
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"


def read_documents(source: SourceConfig, setting: str) -> tuple[Document, ...]:
    """All documents of a source as their bytes, sorted by file and then as they stand there.

    Everything is held in memory: this is for corpora of some gigabytes.

    Args:
        source: where they are.
        setting: the source's name in messages, such as `data.sources[0]`.

    Returns:
        Documents named by file, or by file and line or record; their tokens are uint8.

    Raises:
        ValueError: no file there, a line that is not JSON, a record without the field or with no text in it.
        ImportError: Parquet without `datasets`.
    """
    if source.path == "stdlib":
        if source.format not in ("auto", "text"):
            raise ValueError(f'`{setting}.format` must be "text" for "stdlib"; got {source.format!r}. Leave it out.')
        return load_corpus("stdlib")
    files = _files(source.path)
    kind = _kind(source, files)
    if not files or (kind != "parquet" and Path(source.path).is_dir()):
        raise ValueError(
            f"`{setting}.path` must lead to files; got {source.path!r}, {_instead(Path(source.path))}. Give a file, a "
            "glob in quotes, or the folder of one split."
        )
    if kind == "parquet":
        return tuple(_from_parquet(source, files, setting))
    if kind == "jsonl":
        return tuple(document for file in files for document in _from_lines(file, source.field, setting))
    return tuple(Document(file.as_posix(), np.frombuffer(file.read_bytes(), np.uint8)) for file in files)


def _files(path: str) -> tuple[Path, ...]:
    """The files that a path means; of a folder, those of Parquet, or the mark of a saved dataset."""
    folder = Path(path)
    if folder.is_dir():
        saved = folder / SAVED
        return (saved,) if saved.is_file() else tuple(sorted(folder.rglob(f"*{PARQUET}")))
    found = [path] if folder.is_file() else glob.glob(path, recursive=True)
    return tuple(sorted(file for file in map(Path, found) if file.is_file()))


def _instead(path: Path) -> str:
    """What is there in place of files."""
    if not path.is_dir():
        return "where no file is"
    return "a folder of splits" if (path / SPLITS).is_file() else "a folder without Parquet files"


def _kind(source: SourceConfig, files: tuple[Path, ...]) -> str:
    if source.format != "auto":
        return source.format
    if Path(source.path).is_dir() or all(file.suffix == PARQUET for file in files):
        return "parquet"
    return "jsonl" if all(file.suffix in JSON_LINES for file in files) else "text"


def _from_lines(file: Path, field: str, setting: str) -> Iterator[Document]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file.as_posix()}:{number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"`{setting}.path` must hold a JSON object a line; got {where}: {error}. Correct that line."
                ) from None
            yield _document(where, record, field, setting)


def _from_parquet(source: SourceConfig, files: tuple[Path, ...], setting: str) -> Iterator[Document]:
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError as missing:
        raise ImportError(
            f"`{setting}.path` {source.path} needs `datasets`, which is not installed. pip install rope-jax[datasets]."
        ) from missing
    if files[0].name == SAVED:
        table = load_from_disk(source.path)
    else:
        # Streamed, so that no second copy is written into a cache.
        names = [str(file) for file in files]
        table = load_dataset("parquet", data_files=names, split="train", streaming=True)
    for number, record in enumerate(table):
        yield _document(f"{source.path}:{number}", record, source.field, setting)


def _document(where: str, record: Any, field: str, setting: str) -> Document:
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        if not isinstance(record, dict):
            there = f"a {type(record).__name__}"
        else:
            there = f"the fields {sorted(record)}" if field not in record else f"a {type(text).__name__} in it"
        raise ValueError(
            f"`{setting}.field` must name a text in every record; got {field!r} at {where}, {there}. Name the field "
            "that holds the text."
        )
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{setting}.field` must name a text of whole characters; got {error.reason} at {where}. Correct it there."
        ) from None
    return Document(where, np.frombuffer(content, np.uint8))

"""Documents out of records: a line of JSON each, or a row of Parquet or of a saved dataset."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rope_jax.experiment.data import Document
from rope_jax.huggingface.weights.wording import shown


def from_lines(file: Path, field: str, setting: str) -> Iterator[Document]:
    """The documents of a file of JSON lines, named by file and line.

    Args:
        file: where they are.
        field: of a record, that holds its text.
        setting: the source's name in messages.

    Raises:
        ValueError: a line that is no JSON object, or that names a field twice, or a record without text.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file.as_posix()}:{number}"
            try:
                record = json.loads(line, object_pairs_hook=_once)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"`{setting}.path` must hold a JSON object a line; got {where}, {_wrong(line, error)}. "
                    "Correct that line, or delete it."
                ) from None
            yield _document(where, record, field, setting)


def from_tables(paths: Sequence[Path], field: str, setting: str) -> Iterator[Document]:
    """The documents of Parquet files, or of folders that `datasets` saved, named by path and record from 0.

    Args:
        paths: where they are, each read by itself.
        field: as for lines.
        setting: as for lines.

    Raises:
        ImportError: without `datasets`.
        ValueError: a path that it cannot read, or a record without text.
    """
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError as missing:
        raise ImportError(
            f"`{setting}.path` {paths[0]} needs `datasets`, which is not installed. pip install rope-jax[datasets]."
        ) from missing

    def streamed(path: str) -> Any:
        """Without a second copy in a cache."""
        return load_dataset("parquet", data_files=[path], split="train", streaming=True)

    for path in paths:
        for number, record in enumerate(_rows(path, load_from_disk if path.is_dir() else streamed, setting)):
            yield _document(f"{path.as_posix()}:{number}", record, field, setting)


def _rows(path: Path, load: Callable[[str], Any], setting: str) -> Iterator[Any]:
    """What `load` finds there; any error of it names the path."""
    try:
        yield from load(str(path))
    except Exception as error:
        # `datasets` lets those of several packages through.
        said = shown(str(error)).rstrip(".")
        raise ValueError(
            f"`{setting}.path` must lead to what `datasets` can read; got {path}: {said}. Fetch or write it again."
        ) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A record, none of whose fields stands there twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} more than once")
    return record


def _wrong(line: bytes, error: Exception) -> str:
    """What is wrong with a line."""
    if not line.strip():
        return "an empty line"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if b"\0" in line:
        return "with zero bytes, so binary or UTF-16"
    # Without the line that it names, which is one within the line.
    return f"{error.msg} (character {error.pos})" if isinstance(error, json.JSONDecodeError) else str(error)


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

"""Read GGUF files of the architecture "llama": configuration, weights one at a time, tokenizer."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rope_jax.huggingface.source import reading
from rope_jax.huggingface.weights.gguf_metadata import DIVISORS, hugging_face_name, llama_config, metadata_of
from rope_jax.huggingface.weights.gguf_tokenizer import gguf_tokenizer
from rope_jax.huggingface.weights.wording import brief, shown
from rope_jax.layout import convert_layout

# What the reader of a damaged file stumbles over.
DAMAGE = (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError)


@dataclass(frozen=True, eq=False)
class GGUFTensors:
    """The weights of a file by their Hugging Face names, dequantised when they are read.

    Attributes:
      tensors: what the package `gguf` knows of each tensor: type, shape, and its bytes, which stay on disk.
      head_dim: channels of a head.
    """

    tensors: Mapping[str, Any]
    head_dim: int

    def names(self) -> frozenset[str]:
        """Every weight."""
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """A weight's shape, rows (outputs) first."""
        return rows_first(self._found(name))

    def read(self, name: str) -> np.ndarray:
        """A weight in float32; queries' and keys' channels in the order of Hugging Face, pairs (i, i + d/2).

        Raises:
          ValueError: a quantisation that the package `gguf` cannot undo.
        """
        tensor = self._found(name)
        values = dequantised(name, tensor)
        if ".q_proj." not in name and ".k_proj." not in name:
            return values
        # llama.cpp turns neighbours, so files hold each head's channels interleaved: i, i + d/2, i + 1, i + 1 + d/2 ...
        return np.asarray(convert_layout(values, to="half", head_dim=self.head_dim, axis=0))

    def _found(self, name: str) -> Any:
        if name not in self.tensors:
            raise KeyError(f"`name` must be a weight of the file; got {name!r}.")
        return self.tensors[name]


@dataclass(frozen=True, eq=False)
class GGUFCheckpoint:
    """A GGUF file in Hugging Face's words.

    Attributes:
      config: a Llama configuration; its rope settings are those of the file's metadata and tensors.
      source: the weights.
      tokenizer: a `tokenizers.Tokenizer`, or None where `warnings` says why there is none.
      warnings: what was left out.
    """

    config: dict[str, Any]
    source: GGUFTensors
    tokenizer: Any
    warnings: tuple[str, ...] = ()


def open_gguf(path: str | os.PathLike[str]) -> GGUFCheckpoint:
    """Open a GGUF file of the Llama family; weights are read when asked for.

    Of a split file (`-00001-of-00003`) the first part is given and all are read.

    Raises:
      ValueError: no GGUF file, a truncated or damaged one, another architecture, tensors or settings that are not
        plain Llama's, a rotation that is not understood.
      FileNotFoundError: no such file, or a missing part.
      ImportError: the package `gguf` is not installed.
    """
    readers = [_reader(part) for part in _parts(Path(path))]
    metadata = _metadata(readers[0], Path(path))
    part, count = (_whole_number(metadata, f"split.{name}", absent) for name, absent in (("no", 0), ("count", 1)))
    if part != 0 or count not in (0, 1, len(readers)):
        raise ValueError(
            "`path` must be the first part of a split file, <name>-00001-of-0000n.gguf, beside the others; got "
            f"{path}, part {part + 1} of {count}. Name the first part."
        )
    tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
    expected = _whole_number(metadata, "split.tensors.count", len(tensors))
    if len(tensors) != expected:
        raise ValueError(
            f"`path` must hold all {expected} tensors in its parts; got {len(tensors)} in {path}. Fetch it again."
        )
    shapes = {name: rows_first(tensor) for name, tensor in tensors.items()}
    divisors = {name: _divisors(name, tensors[name]) for name in DIVISORS if name in tensors}
    config = llama_config(metadata, shapes, divisors)
    named: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if tensor.data.dtype.kind == "i":
            raise ValueError(
                f"`path` must hold floating or quantised tensors; got {tensor.tensor_type.name} for {shown(name)} in "
                f"{path}. Load the checkpoint in its Hugging Face form."
            )
        hugging_face = hugging_face_name(name)
        if hugging_face is not None:
            named[hugging_face] = tensor
        # Older files hold each layer's frequencies, which the metadata states as well.
        elif name not in DIVISORS and not name.endswith(".attn_rot_embd.weight"):
            raise ValueError(
                f"`path` must hold the tensors of a plain Llama model; got {shown(name)} in {path}. "
                "Load the checkpoint in its Hugging Face form."
            )
    tokenizer, warnings = _tokenizer(metadata)
    return GGUFCheckpoint(config, GGUFTensors(MappingProxyType(named), config["head_dim"]), tokenizer, warnings)


def rows_first(tensor: Any) -> tuple[int, ...]:
    """The shape of a matrix as [outputs, inputs]; files state the fastest axis first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def dequantised(name: str, tensor: Any) -> np.ndarray:
    """A tensor in float32, in the shape and order that the file has it."""
    from gguf.quants import dequantize

    if tensor.data.dtype == np.float64:
        return np.asarray(tensor.data).astype(np.float32)
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise ValueError(
            f"`{name}` must be of a type that the package gguf can turn into numbers; got {tensor.tensor_type.name}."
        ) from error
    # A copy: single precision is given as a view of the file.
    return np.array(values, np.float32).reshape(rows_first(tensor))


def _reader(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as missing:
        raise ImportError("Reading GGUF files needs the package gguf. pip install rope-jax[hf].") from missing
    with reading(path), path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"`path` must be a GGUF file, which begins with those four letters; got {path}: {magic!r}.")
    try:
        reader = GGUFReader(path)
    except DAMAGE as error:
        raise ValueError(
            f"`path` must be a whole GGUF file; got {path}, which is truncated or damaged ({shown(str(error))}). "
            "Fetch it again."
        ) from error
    if reader.byte_order != "I":
        raise ValueError(f"`path` must be written in this machine's byte order; got {path}, which is in the other one.")
    return reader


def _metadata(reader: Any, path: Path) -> dict[str, Any]:
    try:
        return metadata_of(reader)
    except DAMAGE as error:
        raise ValueError(
            f"`path` must hold metadata that can be read; got {path}, which is damaged ({shown(str(error))}). "
            "Fetch it again."
        ) from error


def _whole_number(metadata: Mapping[str, Any], key: str, absent: int) -> int:
    value = metadata.get(key, absent)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"`{key}` must be an integer; got {brief(value)}. The file is damaged: fetch it again.")
    return value


def _divisors(name: str, tensor: Any) -> list[float]:
    """One number for each pair."""
    shape = rows_first(tensor)
    if len(shape) != 1 or tensor.data.dtype.kind != "f":
        raise ValueError(
            f"`{name}` must be one floating number for each pair; got shape {shape} of {tensor.tensor_type.name}. "
            "Load the checkpoint in its Hugging Face form."
        )
    divisors: list[float] = dequantised(name, tensor).tolist()
    return divisors


def _parts(path: Path) -> list[Path]:
    found = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    parts = [path]
    if found is not None and int(found[2]) == 1:
        count = int(found[3])
        parts = [path.with_name(f"{found[1]}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1)]
    for part in parts:
        if not part.is_file():
            raise FileNotFoundError(f"`path` must be a GGUF file with all its parts; {part} is missing.")
    return parts


def _tokenizer(metadata: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    try:
        return gguf_tokenizer(metadata)
    except (ValueError, ImportError) as error:
        return None, (f"No tokenizer: {error}",)

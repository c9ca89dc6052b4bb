"""A checkpoint opened: what it is is known and checked, none of its weights is read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from rope_jax import nn
from rope_jax.huggingface.config import from_huggingface
from rope_jax.huggingface.grammar import ALIASES
from rope_jax.huggingface.source import read_config, reading
from rope_jax.huggingface.weights.families import family_of
from rope_jax.huggingface.weights.locate import checked_folder, gguf_parts, locate
from rope_jax.huggingface.weights.matching import Matched, abstract_decoder, match, parameter_shapes
from rope_jax.huggingface.weights.safetensors_folder import open_folder, weight_files
from rope_jax.huggingface.weights.shape import decoder_config, trained_length
from rope_jax.huggingface.weights.source import TensorSource
from rope_jax.huggingface.weights.tokenizer import check_vocabulary, read_tokenizer
from rope_jax.spec import ModelRope


@dataclass(frozen=True)
class Outline:
    """What a checkpoint is, from its configuration and the headers of its files.

    Attributes:
      decoder_config: the decoder that it describes.
      rope: its rotary settings.
      trained_length: tokens that it was trained on.
      config: its raw configuration.
      has_tokenizer: whether it comes with a tokenizer.
      parameters: how many numbers it has.
    """

    decoder_config: nn.DecoderConfig
    rope: ModelRope
    trained_length: int
    config: Mapping[str, Any]
    has_tokenizer: bool
    parameters: int


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An outline, and where its tensors come from."""

    outline: Outline
    tensors: TensorSource
    matched: Matched
    tokenizer: Any


def open_checkpoint(source: str | os.PathLike[str], *, dtype: str = "float32", strict: bool = True) -> Checkpoint:
    """Open and check everything of a checkpoint but the numbers in its tensors."""
    raw, tensors, tokenizer, warnings = _opened(locate(source))
    family = family_of(raw)
    _check_layers(raw, tensors)
    rope = from_huggingface(raw, strict=strict)
    rope = replace(rope, warnings=rope.warnings + warnings)
    config = decoder_config(raw, rope, dtype=dtype)
    length = trained_length(raw)
    check_vocabulary(tokenizer, config.vocab, family)
    shapes = parameter_shapes(abstract_decoder(config)[1])
    matched = match(tensors, family, shapes, tied=config.tied, label=os.fspath(source))
    parameters = sum(row.numbers for row in matched.placed)
    outlined = Outline(config, rope, length, raw, tokenizer is not None, parameters)
    return Checkpoint(outlined, tensors, matched, tokenizer)


def outline(source: str | os.PathLike[str], *, dtype: str = "float32", strict: bool = True) -> Outline:
    """What a checkpoint is, with every check of `load_pretrained` and without reading a weight.

    Args:
      source, dtype, strict: as `load_pretrained` takes them.
    """
    return open_checkpoint(source, dtype=dtype, strict=strict).outline


def load_tokenizer(source: str | os.PathLike[str]) -> Any:
    """The `tokenizers.Tokenizer` of a checkpoint, None where it has none.

    Args:
      source: a folder, a GGUF file or a hub id.
    """
    path = locate(source)
    return _opened(path)[2] if path.is_file() else read_tokenizer(path)


def digest(source: str | os.PathLike[str]) -> str:
    """sha256 over the configuration and the bytes of the weights: equal for the same checkpoint, wherever it lies.

    Args:
      source: a folder, a GGUF file or a hub id.

    Returns:
      64 hexadecimal digits.
    """
    path = locate(source)
    whole = sha256()
    folder = None if path.is_file() else checked_folder(path)
    files = gguf_parts(path) if folder is None else (folder / "config.json", *weight_files(folder))
    for file in files:
        with reading(file), file.open("rb") as stream:
            whole.update(file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def _check_layers(raw: Mapping[str, Any], tensors: TensorSource) -> None:
    """Every layer has tensors: a count beyond them would fill the memory with layers before one is missed."""
    most = len(tensors.names())
    for key in ("num_hidden_layers", *ALIASES["num_hidden_layers"]):
        count = raw.get(key)
        if isinstance(count, int | float) and count > most:
            raise ValueError(f"`{key}` must be at most the {most} tensors of the checkpoint; got {count}. Correct it.")


def _opened(path: Path) -> tuple[dict[str, Any], TensorSource, Any, tuple[str, ...]]:
    """Configuration, tensors, tokenizer, and what was left out."""
    if path.is_file():
        from rope_jax.huggingface.weights.gguf import open_gguf

        found = open_gguf(path)
        return found.config, found.source, found.tokenizer, found.warnings
    folder = checked_folder(path)
    return read_config(folder), open_folder(folder), read_tokenizer(folder), ()

"""Save a model as a Hugging Face folder: all of it, or nothing."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx

from rope_jax.huggingface.weights.families import family_of
from rope_jax.huggingface.weights.load import DTYPES, narrowed
from rope_jax.huggingface.weights.locate import TOKENIZER_FILES, locate
from rope_jax.huggingface.weights.matching import Placed, parameter_shapes, table
from rope_jax.huggingface.weights.pretrained import Pretrained
from rope_jax.huggingface.weights.safetensors_folder import INDEX, SINGLE
from rope_jax.huggingface.weights.saved_config import saved_config
from rope_jax.huggingface.weights.tokenizer import FILE, check_vocabulary
from rope_jax.huggingface.weights.whole import appearing, check_parameters, check_parts, checked_target, placing

# What goes along as it is; the tokenizer itself is written from the one in memory.
_COPIED = (*(name for name in TOKENIZER_FILES if name != FILE), "generation_config.json")

Job = tuple[Placed, int]


def save_pretrained(
    model: Pretrained,
    folder: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    max_shard_bytes: int = 5_000_000_000,
    version: Literal[4, 5] = 5,
) -> None:
    """Write a model as a Hugging Face folder: config.json, safetensors, tokenizer.

    The configuration is the model's own with its present rotary settings in place of the old ones; the weights are
    those of its decoder now. Everything is written beside the folder first and renamed when it is whole.

    Args:
      model: as loaded, fine-tuned, or with other rotary settings: `dataclasses.replace(model, rope=...)`.
      folder: where to; it must not exist, or be empty.
      dtype: of the tensors, "float32", "bfloat16" or "float16"; None: that of the embedding.
      max_shard_bytes: a file's share of the tensors; more than one file come with an index.
      version: of the configuration's spelling, as in `to_huggingface`.

    Raises:
      TypeError: no Pretrained, no path.
      FileExistsError: the folder holds something.
      OSError: a place that may not be written, or without room.
      ValueError: parameters that are not those of the decoder's configuration, a tokenizer beyond the vocabulary,
        rotary settings that the model type cannot state, a weight beyond float16.

    Example:
      save_pretrained(replace(model, rope=stretched), "stretched")
    """
    target = checked_target("folder", folder)
    with placing("folder", target):
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if taken:
        raise FileExistsError(f"`folder` must be new or empty; got {target}. Choose another, or remove it.")
    if isinstance(max_shard_bytes, bool) or not isinstance(max_shard_bytes, int):
        raise TypeError(f"`max_shard_bytes` must be an integer; got {max_shard_bytes!r}. The usual is 5_000_000_000.")
    if max_shard_bytes < 1:
        raise ValueError(f"`max_shard_bytes` must be at least 1; got {max_shard_bytes}. The usual is 5_000_000_000.")
    check_parts(model)
    check_parameters(model.decoder)
    state = nnx.state(model.decoder)
    written = str(model.decoder.embedding[...].dtype) if dtype is None else dtype
    if written not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}; got {written!r}. Choose one of them.")
    config = saved_config(model, written, version)
    family = family_of(config)
    placed = table(family, parameter_shapes(state), family.spellings[0])
    check_vocabulary(model.tokenizer, model.decoder.config.vocab, family)
    text = _json(config)
    with appearing("folder", target) as partial:
        partial.mkdir(parents=True)
        _write_weights(partial, placed, nnx.to_pure_dict(state), model, jnp.dtype(written), max_shard_bytes)
        _write_tokenizer(partial, model)
        # The last one: without it nothing is taken for a checkpoint.
        (partial / "config.json").write_text(text, encoding="utf-8")


def _write_weights(
    folder: Path, placed: tuple[Placed, ...], parameters: Any, model: Pretrained, dtype: np.dtype, limit: int
) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as missing:
        raise ImportError(
            "`model` needs safetensors to be saved, which is not installed. pip install rope-jax[hf]."
        ) from (missing)
    shards = list(_shards(placed, dtype.itemsize, limit))
    index: dict[str, str] = {}
    for number, jobs in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        heads = model.decoder.config.heads
        tensors = {row.names[layer]: _tensor(row, layer, parameters, heads, dtype) for row, layer in jobs}
        try:
            save_file(tensors, folder / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
        # The package keeps others from reading it, whatever the user's mask.
        (folder / file).chmod(folder.stat().st_mode & 0o666)
        index |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        total = sum(row.numbers for row in placed) * dtype.itemsize
        whole = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
        (folder / INDEX).write_text(_json(whole), encoding="utf-8")


def _shards(placed: tuple[Placed, ...], itemsize: int, limit: int) -> Iterator[list[Job]]:
    """The tensors of every file, layer by layer: as many as the limit allows, and at least one."""
    jobs = sorted(((row, layer) for row in placed for layer in range(len(row.names))), key=lambda job: job[1])
    shard: list[Job] = []
    filled = 0
    for row, layer in jobs:
        size = row.numbers // len(row.names) * itemsize
        if shard and filled + size > limit:
            yield shard
            shard, filled = [], 0
        shard.append((row, layer))
        filled += size
    yield shard


def _tensor(row: Placed, layer: int, parameters: Any, heads: int, dtype: np.dtype) -> np.ndarray:
    arrays = [_leaf(parameters, path) for path in row.parameters]
    of_layer = tuple(np.asarray(array[layer] if row.stacked else array) for array in arrays)
    tensor = narrowed(row.codec.encode(of_layer, heads), dtype, row.names[layer], "dtype")
    return np.ascontiguousarray(tensor.astype(dtype))


def _leaf(parameters: Any, path: str) -> Any:
    for step in path.split("."):
        parameters = parameters[step]
    return parameters


def _json(value: Any) -> str:
    try:
        return json.dumps(value, indent=2) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"`model` must have a configuration of JSON values; got {error}. Correct it.") from error


def _write_tokenizer(folder: Path, model: Pretrained) -> None:
    if model.tokenizer is not None:
        (folder / FILE).write_text(model.tokenizer.to_str(pretty=True), encoding="utf-8")
    try:
        origin = locate(model.source, fetch=False)
    except (OSError, ImportError, TypeError, ValueError):
        # What the model came from is gone, or was never a folder; what is in memory has been written.
        return
    for name in _COPIED:
        if origin.is_dir() and (origin / name).is_file():
            shutil.copyfile(origin / name, folder / name)

"""Load a checkpoint: parameters are filled one stack of layers at a time, so that memory holds little besides them."""

import os
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rope_jax import nn
from rope_jax.huggingface.weights.checkpoint import open_checkpoint
from rope_jax.huggingface.weights.matching import Matched, Placed, abstract_decoder
from rope_jax.huggingface.weights.pretrained import Pretrained
from rope_jax.huggingface.weights.source import TensorSource

DTYPES = ("float32", "bfloat16", "float16")
# Bytes; of the CPU backend of XLA.
_ALIGNMENT = 64


def load_pretrained(
    source: str | os.PathLike[str], *, dtype: str = "float32", param_dtype: str = "float32", strict: bool = True
) -> Pretrained:
    """A pretrained decoder with its rotary settings and tokenizer.

    Families: Llama (with Code Llama, TinyLlama, SmolLM2), Mistral, Qwen2 and 2.5, Qwen3, Phi-3 to 4-mini, Gemma 2,
    Gemma 3 (its text model), SmolLM3, OLMo 2, GPT-NeoX and Pythia; GGUF files of the Llama family. Every tensor must be
    known and every parameter filled; that and all shapes are checked before a weight is read.

    Args:
      source: a folder with config.json and safetensors (one file, or shards with an index), a .gguf file, or a hub id
        (needs huggingface_hub; HF_HUB_OFFLINE=1 keeps to its cache).
      dtype: of activations, "float32", "bfloat16" or "float16".
      param_dtype: of parameters, the same three. Norm scales that are stored as differences from one stay float32.
      strict: as in `from_huggingface`.

    Returns:
      A Pretrained with `.decoder`, `.rope`, `.tokenizer` (None where there is none), `.config` and `.logits`.

    Raises:
      FileNotFoundError: no such folder, file or repository, or a shard is missing.
      ValueError, TypeError: an unknown architecture or setting, tensors that do not fit it, a file that is cut off, a
        pickle, a tokenizer for another vocabulary.

    Example:
      model = load_pretrained("path/to/model")
      logits = model.logits(model.tokenizer.encode("Call me Ishmael").ids)
    """
    if param_dtype not in DTYPES:
        raise ValueError(f"`param_dtype` must be one of {', '.join(DTYPES)}; got {param_dtype!r}. Choose one of them.")
    opened = open_checkpoint(source, dtype=dtype, strict=strict)
    about = opened.outline
    decoder = _filled(about.decoder_config, opened.tensors, opened.matched, jnp.dtype(param_dtype))
    return Pretrained(decoder, about.rope, opened.tokenizer, about.config, os.fspath(source))


def _filled(config: nn.DecoderConfig, source: TensorSource, matched: Matched, dtype: np.dtype) -> nn.Decoder:
    structure, state = abstract_decoder(config)
    parameters: dict[str, Any] = nnx.to_pure_dict(state)
    # The largest first: while it is in memory twice, there is little else.
    for placed in sorted(matched.placed, key=lambda placed: placed.numbers, reverse=True):
        _fill(parameters, placed, source, config.heads, dtype)
        if placed.parameters == ("embedding",) and matched.tied_head is not None:
            _check_tied(source, placed.names[0], matched.tied_head)
    nnx.replace_by_pure_dict(state, parameters)
    return nnx.merge(structure, state)


def _fill(parameters: dict[str, Any], placed: Placed, source: TensorSource, heads: int, dtype: np.dtype) -> None:
    for path, array in zip(placed.parameters, _stacks(placed, source, heads, dtype), strict=True):
        *folders, leaf = path.split(".")
        inner = parameters
        for folder in folders:
            inner = inner[folder]
        # Where the device is the host, the array itself: nothing else refers to it.
        inner[leaf] = jax.device_put(array, may_alias=True).block_until_ready()


def _stacks(placed: Placed, source: TensorSource, heads: int, dtype: np.dtype) -> list[np.ndarray]:
    """The parameters of a row, all layers of each in one array."""
    dtype = np.dtype(np.float32) if placed.codec.wide else dtype
    stacks = [_room((len(placed.names), *shape), dtype) for shape in placed.shapes]
    for layer, name in enumerate(placed.names):
        parts = placed.codec.decode(source.read(name), placed.shapes, heads)
        for stack, part in zip(stacks, parts, strict=True):
            stack[layer] = narrowed(part, dtype, name, "param_dtype")
    return stacks if placed.stacked else [stack[0] for stack in stacks]


def _room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array at an address that the device can use as it is."""
    size = prod(shape) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def narrowed(numbers: np.ndarray, dtype: np.dtype, name: str, argument: str) -> np.ndarray:
    """The same numbers, on the way to a dtype that must hold them."""
    if dtype != np.float16 or numbers.dtype == np.float16:
        return numbers
    wide = numbers.astype(np.float32)
    largest = np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))
    if largest > np.finfo(np.float16).max:
        raise ValueError(
            f"`{argument}` must hold every weight; got float16 for {name} with {largest:g}, above 65504. Use bfloat16."
        )
    return wide


def _check_tied(source: TensorSource, embedding: str, head: str) -> None:
    if not np.array_equal(source.read(embedding), source.read(head)):
        raise ValueError(
            f"`tie_word_embeddings` must be false where {head} differs from {embedding}; got true. "
            "Correct the configuration."
        )

"""Write a model of the Llama family as a GGUF file, from which llama.cpp computes the same logits."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rope_jax.huggingface.gguf_rope import FREQS
from rope_jax.huggingface.gguf_rope import rope_metadata as rope_metadata
from rope_jax.huggingface.weights.gguf_vocab import tokenizer_metadata
from rope_jax.huggingface.weights.whole import appearing, check_parameters, check_parts, checked_target, placing
from rope_jax.huggingface.weights.wording import brief
from rope_jax.layout import convert_layout

Json = dict[str, Any]
# `general.file_type`: what most tensors are.
FILE_TYPES = (("float32", 0), ("float16", 1), ("bfloat16", 32))
BLOCK = (
    *(("attn_q", "attention", "query"), ("attn_k", "attention", "key"), ("attn_v", "attention", "value")),
    *(("attn_output", "attention", "out"), ("ffn_gate", "mlp", "gate"), ("ffn_up", "mlp", "up")),
    ("ffn_down", "mlp", "down"),
)


def save_gguf(
    model: Any, path: str | os.PathLike[str], *, dtype: Literal["float32", "float16", "bfloat16"] = "float32"
) -> None:
    """Write a pretrained model of the plain Llama architecture as one GGUF file.

    Rows of queries and keys go into llama.cpp's order, the rotation becomes its metadata (`rope_metadata`), the
    tokenizer its vocabulary. The file appears under its name when it is whole.

    Args:
      model: a `Pretrained`, or anything with its `decoder`, `rope`, `tokenizer` and `config`.
      path: the file; one that is there is replaced.
      dtype: of the matrices; vectors are float32.

    Raises:
      TypeError: no Pretrained, no path.
      OSError: a place that may not be written, or without room.
      ValueError: before anything is written: an architecture, rotation or tokenizer that the file cannot state, weights
        beyond the dtype's range; the message names what would be lost.
      ImportError: the package `gguf` is not installed.

    Example:
      save_gguf(load_pretrained("path/to/model"), "model.gguf", dtype="bfloat16")
    """
    gguf, path = _package(), checked_target("path", path)
    with placing("path", path):
        folder = path.is_dir()
    if folder:
        raise FileExistsError(f"`path` must be a file; got the folder {path}. Name a file in it.")
    if not isinstance(dtype, str) or dtype not in dict(FILE_TYPES):
        raise ValueError(f"`dtype` must be float32, float16 or bfloat16; got {dtype!r}. Choose one of them.")
    check_parts(model)
    _refuse_other_architectures(model.decoder.config)
    check_parameters(model.decoder)
    rope = rope_metadata(model.rope)
    tensors = _tensors(model.decoder)
    if FREQS in rope:
        tensors[FREQS] = Stored(np.asarray(rope.pop(FREQS), np.float32))
    metadata = _sizes(model) | rope | {"general.file_type": dict(FILE_TYPES)[dtype]}
    metadata |= tokenizer_metadata(model.tokenizer, vocab=model.decoder.config.vocab, config=model.config)
    if dtype == "float16":
        _refuse_overflow(tensors)
    # A writer with no path of its own: it opens the temporary file.
    writer = gguf.GGUFWriter(None, "llama")
    for key, value in metadata.items():
        _add(writer, key, value)
    with appearing("path", path) as partial:
        try:
            _write(gguf, writer, partial, tensors, dtype)
        finally:
            writer.close()


def _package() -> Any:
    try:
        import gguf
        import gguf.quants
    except ImportError as missing:
        raise ImportError("Writing GGUF files needs the package gguf. pip install rope-jax[hf].") from missing
    return gguf


def _refuse_other_architectures(config: Any) -> None:
    scale = config.attention.head_width**-0.5
    plain: tuple[tuple[str, Any], ...] = (
        *(("norm", "rms"), ("norm_placement", "pre"), ("parallel", False), ("activation", "silu"), ("gated", True)),
        *(("qk_norm", False), ("softcap", None), ("sinks", False), ("logit_softcap", None), ("windows", ())),
        ("positional", "rope"),
    )
    found = [(name, value, getattr(config, name)) for name, value in plain]
    found += [("scale", scale, config.scale or scale), ("embed_scale", 1.0, config.input_scale)]
    for name, value, got in found:
        if got != value:
            raise ValueError(
                f"`{name}` must be {value!r} to be written as a GGUF file of the architecture llama; got {got!r}, "
                "which would be lost. Save the model in its Hugging Face form."
            )
    if len({"qkv", "out"} & set(config.biased)) == 1:
        raise ValueError(
            f"`bias` must be on all projections of the attention or on none, as in Llama; got {config.biased}. "
            "Save the model in its Hugging Face form."
        )


def _sizes(model: Any) -> Json:
    config = model.decoder.config
    length = model.config.get("max_position_embeddings")
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length < 2**32:
        raise ValueError(
            "`max_position_embeddings` must be in the model's configuration, a positive integer of 32 bits; got "
            f"{brief(length)}. Add it."
        )
    return {
        "llama.vocab_size": config.vocab,
        "llama.context_length": length,
        "llama.block_count": config.layers,
        "llama.embedding_length": config.embed,
        "llama.feed_forward_length": config.mlp_width,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.attention.kv_count,
        "llama.attention.key_length": config.attention.head_width,
        "llama.attention.value_length": config.attention.head_width,
        "llama.attention.layer_norm_rms_epsilon": float(config.norm_epsilon),
    }


@dataclass(frozen=True)
class Stored:
    """A tensor of the file: rows of a kernel [in, out] or a vector, of one layer or of the model.

    Attributes:
      param: the decoder's parameter, with all layers where `layer` is given.
      width: channels of a head whose halves are to be interleaved.
    """

    param: Any
    layer: int | None = None
    width: int | None = None
    transposed: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        shape = tuple(self.param.shape)[0 if self.layer is None else 1 :]
        return shape[::-1] if self.transposed else shape

    def read(self) -> np.ndarray:
        """The numbers in float32."""
        values = self.param[...] if self.layer is None else self.param[...][self.layer]
        rows = np.asarray(values).astype(np.float32)
        rows = rows.T if self.transposed else rows
        if self.width is not None:
            rows = np.asarray(convert_layout(rows, to="interleaved", head_dim=self.width, axis=0))
        return np.ascontiguousarray(rows)


def _tensors(decoder: Any) -> dict[str, Stored]:
    config, blocks = decoder.config, decoder.blocks
    found = {"token_embd.weight": Stored(decoder.embedding, transposed=False)}
    for layer in range(config.layers):
        found[f"blk.{layer}.attn_norm.weight"] = Stored(blocks.attention_norm.scale, layer)
        found[f"blk.{layer}.ffn_norm.weight"] = Stored(blocks.mlp_norm.scale, layer)
        for name, part, projection in BLOCK:
            dense = getattr(getattr(blocks, part), projection)
            turned = config.attention.head_width if name in ("attn_q", "attn_k") and config.layout == "half" else None
            found[f"blk.{layer}.{name}.weight"] = Stored(dense.kernel, layer, turned)
            if dense.bias is not None:
                found[f"blk.{layer}.{name}.bias"] = Stored(dense.bias, layer, turned)
    found["output_norm.weight"] = Stored(decoder.norm.scale)
    if decoder.unembedding is not None:
        found["output.weight"] = Stored(decoder.unembedding)
    return found


def _refuse_overflow(tensors: dict[str, Stored]) -> None:
    for name, tensor in tensors.items():
        largest = float(np.abs(tensor.read()).max()) if len(tensor.shape) > 1 else 0.0
        if largest > float(np.finfo(np.float16).max):
            raise ValueError(f"`dtype` must hold the largest weight of {name}, {largest:g}; got float16. Use bfloat16.")


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _write(gguf: Any, writer: Any, path: Path, tensors: dict[str, Stored], dtype: str) -> None:
    """The header with every tensor's place, then one tensor after the other."""
    types = gguf.GGMLQuantizationType
    matrix = types[{"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]]
    for name, tensor in tensors.items():
        kind, wide = (matrix, dtype == "float32") if len(tensor.shape) > 1 else (types.F32, True)
        width = np.dtype(np.float32 if wide else np.float16)
        size = math.prod(tensor.shape) * width.itemsize
        writer.add_tensor_info(name, tensor.shape, width, size, raw_dtype=kind)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors.values():
        kind = matrix if len(tensor.shape) > 1 else types.F32
        writer.write_tensor_data(gguf.quants.quantize(tensor.read(), kind))

"""Tiny GGUF files written by hand, and what llama.cpp computes from their rope keys, in NumPy."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

VOCAB, EMBED, MLP, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 40, 32, 64, 2, 4, 2, 8
SIZES: Mapping[str, Any] = {
    "llama.vocab_size": VOCAB,
    "llama.context_length": 4096,
    "llama.block_count": LAYERS,
    "llama.embedding_length": EMBED,
    "llama.feed_forward_length": MLP,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.rope.freq_base": 10_000.0,
}
# Hugging Face's names beside the file's; shapes rows first.
PARTS = (
    ("attn_norm", "input_layernorm", (EMBED,)),
    ("attn_q", "self_attn.q_proj", (HEADS * HEAD_DIM, EMBED)),
    ("attn_k", "self_attn.k_proj", (KV_HEADS * HEAD_DIM, EMBED)),
    ("attn_v", "self_attn.v_proj", (KV_HEADS * HEAD_DIM, EMBED)),
    ("attn_output", "self_attn.o_proj", (EMBED, HEADS * HEAD_DIM)),
    ("ffn_norm", "post_attention_layernorm", (EMBED,)),
    ("ffn_gate", "mlp.gate_proj", (MLP, EMBED)),
    ("ffn_up", "mlp.up_proj", (MLP, EMBED)),
    ("ffn_down", "mlp.down_proj", (EMBED, MLP)),
)


def hugging_face_weights(*, tied: bool = True, biases: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Random float32 weights under the names and in the order of Hugging Face."""
    draw = np.random.default_rng(0).standard_normal
    weights = {"model.embed_tokens.weight": draw((VOCAB, EMBED), np.float32)}
    for layer in range(LAYERS):
        for name, theirs, shape in PARTS:
            weights[f"model.layers.{layer}.{theirs}.weight"] = draw(shape, np.float32)
            if name in biases:
                weights[f"model.layers.{layer}.{theirs}.bias"] = draw(shape[:1], np.float32)
    weights["model.norm.weight"] = draw((EMBED,), np.float32)
    return weights if tied else weights | {"lm_head.weight": draw((VOCAB, EMBED), np.float32)}


def file_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, kind = name.rsplit(".", 1)
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{next(ours for ours, theirs, _ in PARTS if theirs == rest)}.{kind}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys in llama.cpp's order: of each head the halves take turns."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_file(
    path: Path,
    weights: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    matrices: str = "F32",
    architecture: str = "llama",
    split_max_tensors: int = 0,
) -> Path:
    """A file of these weights; a value of None among `metadata` leaves a key out."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    for key, value in (dict(SIZES) | dict(metadata or {})).items():
        add(writer, key, value)
    for name, values in weights.items():
        if ".q_proj." in name or ".k_proj." in name:
            values = interleaved(values, HEADS if ".q_proj." in name else KV_HEADS)
        kind = gguf.GGMLQuantizationType[matrices if values.ndim > 1 else "F32"]
        writer.add_tensor(file_name(name), quantize(values, kind), raw_dtype=kind)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: Any, key: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    if value is not None:
        getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def llama_cpp(metadata: Mapping[str, Any], divisors: Any = None) -> tuple[np.ndarray, float]:
    """Frequencies, and the factor on cos and sin, that llama.cpp computes from a file's keys."""
    rope = {key.removeprefix("llama.rope."): value for key, value in metadata.items()}
    width, base = rope.get("dimension_count", HEAD_DIM), rope.get("freq_base", 10_000.0)
    kind, scale = rope.get("scaling.type", "linear"), rope.get("scaling.attn_factor", 1.0)
    factor = rope.get("scaling.factor", rope.get("scale_linear", 0.0)) or 1.0
    factor = 1.0 if kind == "none" else factor
    pair = np.arange(width // 2)
    plain = base ** (-2.0 * pair / width) / (1.0 if divisors is None else np.asarray(divisors, np.float64))
    if kind != "yarn":
        return plain / factor, scale
    length = rope.get("scaling.original_context_length", rope.get("llama.context_length", 4096))

    def corner(turns: float) -> float:
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(corner(32))), min(width - 1, math.ceil(corner(1)))
    kept = 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)
    return plain / factor * (1 - kept) + plain * kept, scale * (1 + 0.1 * math.log(factor))

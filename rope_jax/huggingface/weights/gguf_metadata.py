"""The metadata of a GGUF file of the architecture "llama" as a Hugging Face configuration, and the names of tensors."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from rope_jax.huggingface.gguf_rope import FREQS, LONG, PREFIX, SHORT, rope_parameters
from rope_jax.huggingface.weights.wording import brief

Json = dict[str, Any]
DIVISORS = (FREQS, SHORT, LONG)
OUTER: Mapping[str, str] = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
BLOCK: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
# Read elsewhere, or of no effect on the model.
READ = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "tensor_data_layout"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
    *("attention.key_length", "attention.value_length"),
)
# Mixtures of experts, and masks that are not causal, have the value named here where they are absent.
ABSENT: Mapping[str, Any] = MappingProxyType({"expert_count": 0, "expert_used_count": 0, "attention.causal": True})


def metadata_of(reader: Any) -> Json:
    """A reader's keys as Python values; single-precision numbers by their shortest decimals."""
    return {name: _plain(field) for name, field in reader.fields.items()}


def _plain(field: Any) -> Any:
    value = field.contents()
    # 1e-5 is stored as 9.999999747378752e-06, and was meant as 1e-5.
    return float(str(np.float32(value))) if isinstance(value, float) and field.types[0].name == "FLOAT32" else value


def hugging_face_name(name: str) -> str | None:
    """What Hugging Face's Llama calls a tensor; None for tensors that are none of its weights."""
    if name in OUTER:
        return OUTER[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if found is None or found[2] not in BLOCK:
        return None
    return f"model.layers.{int(found[1])}.{BLOCK[found[2]]}.{found[3]}"


def llama_config(
    metadata: Json, shapes: Mapping[str, tuple[int, ...]], divisors: Mapping[str, Sequence[float]]
) -> Json:
    """A Hugging Face Llama configuration with the file's sizes and rotation.

    Args:
      metadata: keys and values of the file.
      shapes: rows first, by the file's names of tensors.
      divisors: the tensors that divide frequencies, by name.

    Raises:
      ValueError: another architecture, a missing size, a setting that changes the model in a way not known here.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(
            f'`general.architecture` must be "llama", the one architecture read from GGUF files; got '
            f"{brief(architecture)}. Load the checkpoint in its Hugging Face form."
        )
    _refuse_unread(metadata)
    heads = _count(metadata, "attention.head_count")
    embed = _count(metadata, "embedding_length")
    head_dim = _count(metadata, "attention.key_length", embed // heads)
    if _count(metadata, "attention.value_length", head_dim) != head_dim:
        raise ValueError(
            f"`llama.attention.value_length` must be the key length {head_dim}; got "
            f"{metadata['llama.attention.value_length']}."
        )
    vocab = shapes.get("token_embd.weight", (0,))[0]
    if metadata.get("llama.vocab_size", vocab) != vocab:
        raise ValueError(
            f"`llama.vocab_size` must be the rows of the embedding, {vocab}; got {metadata['llama.vocab_size']}."
        )
    config: Json = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": vocab,
        "hidden_size": embed,
        "intermediate_size": _count(metadata, "feed_forward_length"),
        "num_hidden_layers": _count(metadata, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _count(metadata, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _stated(metadata, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": _count(metadata, "context_length"),
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": _biased(shapes, ("attn_q", "attn_k", "attn_v", "attn_output")),
        "mlp_bias": _biased(shapes, ("ffn_gate", "ffn_up", "ffn_down")),
        "rope_parameters": rope_parameters(metadata, divisors, head_dim=head_dim),
        "torch_dtype": "float32",
    }
    for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        stated = f"tokenizer.ggml.{key}_token_id"
        index = metadata.get(stated, 0)
        if isinstance(index, bool) or not isinstance(index, int):
            raise ValueError(f"`{stated}` must be an integer; got {brief(index)}. The file is damaged: fetch it again.")
        if stated in metadata:
            config[name] = index
    return config


def _refuse_unread(metadata: Json) -> None:
    for key, value in metadata.items():
        name = key.removeprefix("llama.")
        if name == key or key.startswith(PREFIX) or name in READ:
            continue
        if name not in ABSENT or ABSENT[name] != value:
            raise ValueError(
                f"`{key}` must be a setting of plain Llama models; got {brief(value)}, whose effect is not known here. "
                "Load the checkpoint in its Hugging Face form."
            )


def _biased(shapes: Mapping[str, tuple[int, ...]], names: tuple[str, ...]) -> bool:
    biases = [name for name in names if f"blk.0.{name}.bias" in shapes]
    if biases and len(biases) < len(names):
        missing = next(name for name in names if name not in biases)
        raise ValueError(
            f"`blk.0.{missing}.bias` must be there beside `blk.0.{biases[0]}.bias`: Llama has biases on all of these "
            "projections or on none; got none."
        )
    return bool(biases)


def _stated(metadata: Json, name: str) -> Any:
    if f"llama.{name}" not in metadata:
        raise ValueError(f"`llama.{name}` must be in the file's metadata; got none. The file is no whole Llama model.")
    return metadata[f"llama.{name}"]


def _count(metadata: Json, name: str, absent: int | None = None) -> int:
    value = _stated(metadata, name) if absent is None else metadata.get(f"llama.{name}", absent)
    # Models whose layers differ state one number per layer.
    value = value[0] if isinstance(value, list) and value and all(entry == value[0] for entry in value) else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(
            f"`llama.{name}` must be one positive integer for all layers; got {brief(value)}. "
            "Load the checkpoint in its Hugging Face form."
        )
    return value

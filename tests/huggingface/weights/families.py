"""Small checkpoints of every family, made without a compiler: random parameters put straight into a decoder."""

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

import rope_jax as rj
from rope_jax.huggingface.weights import Pretrained
from rope_jax.huggingface.weights.matching import abstract_decoder
from rope_jax.huggingface.weights.shape import decoder_config

_SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
_GEMMA = _SIZES | {"head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 16}
_NEOX = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
CONFIGS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "llama": _SIZES | {"model_type": "llama", "rope_theta": 5e5},
        "llama-biases": _SIZES | {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 6},
        "mistral": _SIZES | {"model_type": "mistral", "sliding_window": 4, "head_dim": None},
        "qwen2": _SIZES
        | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        "qwen3": _SIZES | {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True},
        "phi3": _SIZES | {"model_type": "phi3", "hidden_size": 32, "partial_rotary_factor": 0.75},
        "gemma2": _GEMMA | {"model_type": "gemma2"},
        "gemma3": _GEMMA | {"model_type": "gemma3_text", "sliding_window_pattern": 3},
        "smollm3": _SIZES | {"model_type": "smollm3", "no_rope_layer_interval": 2},
        "olmo2": _SIZES | {"model_type": "olmo2", "attention_bias": True},
        "gpt-neox": _NEOX | {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 1000},
        "gpt-neox-sequential": _NEOX | {"model_type": "gpt_neox", "rotary_pct": 1.0, "use_parallel_residual": False},
    }
)


def parameters(decoder: Any) -> dict[str, np.ndarray]:
    """Every parameter by its path."""
    flat = nnx.to_flat_state(nnx.state(decoder))
    return {".".join(map(str, path)): np.asarray(variable[...]) for path, variable in flat}


def random_model(name: str, *, dtype: Any = jnp.float32, source: str = "made here", **changed: Any) -> Pretrained:
    """A model of a configuration here with random parameters, norm scales around one."""
    raw = {key: value for key, value in (CONFIGS[name] | changed).items() if value != "absent"}
    rope = rj.from_huggingface(raw)
    structure, state = abstract_decoder(decoder_config(raw, rope))
    random = np.random.default_rng(0)

    def filled(path: tuple[Any, ...], leaf: Any) -> Any:
        noise = 0.2 * random.standard_normal(leaf.shape).astype(np.float32)
        # Eighths survive in 16 bits, and so does their difference from one.
        return jnp.asarray(1 + np.round(8 * noise) / 8) if "scale" in path else jnp.asarray(noise).astype(dtype)

    flat = nnx.to_flat_state(state)
    made = nnx.from_flat_state([(path, leaf.replace(filled(path, leaf))) for path, leaf in flat])
    return Pretrained(nnx.merge(structure, made), rope, None, raw, source)


def write_config(folder: Path, **changed: Any) -> None:
    """Change keys of a folder's configuration; "absent" removes one."""
    path = folder / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8")) | changed
    path.write_text(json.dumps({key: value for key, value in raw.items() if value != "absent"}), encoding="utf-8")

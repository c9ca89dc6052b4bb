"""Tiny checkpoints that two programs can make alike: configurations, weights by a formula, what they read.

The generator of the goldens builds them in transformers, the tests build them in Hugging Face form on disk. Nothing
here needs more than NumPy.
"""

import zlib
from types import MappingProxyType
from typing import Any

import numpy as np

ORIGINAL = 32
VOCAB = 24
SEQ = 12
TOKEN_IDS = np.random.default_rng(7).integers(0, VOCAB, (2, SEQ)).tolist()
# From the start; up to the original length; up to four times that.
AT_START, AT_LENGTH, FAR = (list(range(start, start + SEQ)) for start in (0, ORIGINAL - SEQ, 4 * ORIGINAL - SEQ))
SPREAD = [0, 1, 2, 5, 11, 17, ORIGINAL - 1, ORIGINAL, 63, 64, 100, 4 * ORIGINAL - 1]

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": ORIGINAL,
}
_GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 8}
# Families by the configuration of a small model of theirs; layers differ wherever the family lets them.
CONFIGS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "llama": _SIZES | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        "mistral": _SIZES | {"head_dim": 16, "sliding_window": 5, "rms_norm_eps": 1e-3},
        "qwen2": _SIZES | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        "qwen3": _SIZES | {"head_dim": 16, "tie_word_embeddings": True},
        "phi3": _SIZES | {"partial_rotary_factor": 0.75, "hidden_size": 64, "pad_token_id": 0},
        "gemma2": _SIZES | _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 12.0},
        "gemma3_text": _SIZES | _GEMMA | {"num_hidden_layers": 3, "sliding_window_pattern": 3},
        "smollm3": _SIZES | {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "pad_token_id": 0},
        "olmo2": _SIZES | {"rms_norm_eps": 1e-4},
        "gpt_neox": _SIZES | {"rotary_pct": 0.5, "hidden_act": "gelu"},
        "gpt_neox-sequential": _SIZES | {"rotary_pct": 0.5, "use_parallel_residual": False},
    }
)
WINDOWED = ("mistral", "qwen2", "gemma2", "gemma3_text")
_YARN = {"beta_fast": 8.0, "beta_slow": 1.0}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "default": {},
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 2.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, **_YARN},
        "llama3": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, **_LLAMA3},
        "longrope": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    }
)


def family(name: str) -> str:
    """The model type of a configuration here."""
    return name.partition("-")[0]


def head_dim(name: str) -> int:
    """Channels of a head."""
    config = CONFIGS[name]
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def rope_parameters(name: str, kind: str) -> dict[str, Any]:
    """The rope dict of a family under a rope type, in the v5 spelling."""
    config = CONFIGS[name]
    rope = {"rope_type": kind, "rope_theta": 100.0, **KINDS[kind]}
    share = config.get("partial_rotary_factor", config.get("rotary_pct"))
    if share is not None:
        rope["partial_rotary_factor"] = share
    if kind == "longrope":
        pairs = int(head_dim(name) * (share or 1.0)) // 2
        rope["short_factor"] = [1.0 + 0.1 * pair for pair in range(pairs)]
        rope["long_factor"] = [1.5 + 0.5 * pair for pair in range(pairs)]
    if name != "gemma3_text":
        return rope
    return {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}


def configuration(name: str, kind: str) -> dict[str, Any]:
    """The configuration as a dict in the v5 spelling, without its model type."""
    config = {key: value for key, value in CONFIGS[name].items() if key not in ("partial_rotary_factor", "rotary_pct")}
    if "original_max_position_embeddings" in KINDS[kind]:
        config |= {"max_position_embeddings": 4 * ORIGINAL}
    if kind == "longrope":
        config |= {"original_max_position_embeddings": ORIGINAL}
    return config | {"rope_parameters": rope_parameters(name, kind)}


def kinds(name: str) -> tuple[str, ...]:
    """The rope types that transformers lets the family have."""
    return ("default", "longrope") if name == "phi3" else tuple(KINDS)


def position_rows(name: str) -> dict[str, list[int]]:
    """Positions to read at. transformers' windows go by index, so theirs have no gaps."""
    return {"start": AT_START, "length": AT_LENGTH, "far": FAR} | ({} if name in WINDOWED else {"spread": SPREAD})


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 weights of a tensor: noise from its name alone, on the same scale as trained ones.

    SplitMix64 (Steele et al. 2014), seeded by the checksum of the name: integers, so equal on every machine.
    """
    with np.errstate(over="ignore"):
        count = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
        z = np.uint64(zlib.crc32(name.encode())) + count * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = ((z ^ (z >> np.uint64(31))) >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    if len(shape) == 1:
        noise = 0.3 * uniform
        # Norm scales lie around one, as those of Gemma, which add the one themselves, do around nothing.
        return (noise + (("norm" in name) and name.endswith("weight"))).reshape(shape).astype(np.float32)
    spread = 1.0 if "embed" in name else 2.5 / np.sqrt(shape[-1])
    return (spread * uniform).reshape(shape).astype(np.float32)

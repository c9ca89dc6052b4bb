"""What vLLM 0.32.0 and llama.cpp compute from a rope dict and from flags: written from their sources, in float64."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Schedule = tuple[np.ndarray, float]


def _plain(width: int, theta: float) -> np.ndarray:
    return np.asarray(1.0 / theta ** (np.arange(0, width, 2) / width))


def _ramp(width: int, theta: float, length: float, fast: float, slow: float, truncate: bool) -> np.ndarray:
    """0 where a pair is kept, 1 where it is interpolated."""

    def dimension(turns: float) -> float:
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    return np.asarray(np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1))


def _mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1


def vllm(rope: dict[str, Any], *, head: int, max_position: int, max_model_len: int, latent: bool = False) -> Schedule:
    """Frequencies and scale on cos and sin that `get_rope` builds; its tables must hold every position."""
    kind, theta = rope.get("rope_type", "default"), rope.get("rope_theta", 10_000)
    width = int(head * rope.get("partial_rotary_factor", 1.0))
    plain, scale, rows = _plain(width, theta), 1.0, max_position
    if latent and kind != "default":
        kind = "deepseek_llama_scaling" if rope.get("attention_factor") == 1.0 else "deepseek_yarn"
    if kind == "linear":
        assert isinstance(rope["factor"], float), "a whole number is iterated over as a list"
        plain, rows = plain / rope["factor"], int(max_position * rope["factor"])
    elif kind == "llama3":
        old, wavelength = rope["original_max_position_embeddings"], 2 * math.pi / plain
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (old / wavelength - low) / (high - low)
        blended = (1 - smooth) * plain / rope["factor"] + smooth * plain
        slow = np.where(wavelength > old / low, plain / rope["factor"], blended)
        plain = np.where(wavelength < old / high, plain, slow)
    elif kind in ("yarn", "deepseek_yarn"):
        factor, old = rope["factor"], rope["original_max_position_embeddings"]
        truncate = rope.get("truncate", True) or kind != "yarn"
        mixed = _ramp(width, theta, old, rope.get("beta_fast", 32), rope.get("beta_slow", 1), truncate)
        plain, rows = plain / factor * mixed + plain * (1 - mixed), math.ceil(old * factor)
        one, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
        if kind == "deepseek_yarn":
            scale = _mscale(factor, 1.0 if one is None else one) / _mscale(factor, all_dim or 0.0)
        elif rope.get("attention_factor") is not None:
            scale = rope["attention_factor"]
        else:
            scale = _mscale(factor, one) / _mscale(factor, all_dim) if one and all_dim else _mscale(factor)
    elif kind == "longrope":
        old = rope["original_max_position_embeddings"]
        ratio = max_position / old
        formula = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(old))
        name = "long" if max_model_len > old else "short"
        plain, rows = plain / np.asarray(rope[f"{name}_factor"]), max_position if name == "long" else old
        scale = rope.get(f"{name}_mscale", formula)
    elif kind == "proportional":
        turning = int(head * rope.get("partial_rotary_factor", 1.0)) // 2
        plain = np.where(np.arange(head // 2) < turning, _plain(head, theta), 0.0)
    else:
        assert kind == "default", kind
    assert rows >= max_model_len, (rows, max_model_len)
    return plain, scale


def vllm_longest(rope: dict[str, Any], max_position: int, model: str) -> float:
    """The longest `--max-model-len` that vLLM lets through."""
    scaled = rope["rope_type"] not in ("longrope", "llama3", "yarn") and "gemma3" not in model
    return max_position * (rope.get("factor", 1.0) if scaled else 1.0)


FLAGS = {
    "--rope-freq-base": "freq_base",
    "--rope-scale": "scale",
    "--yarn-orig-ctx": "orig_ctx",
    "--yarn-ext-factor": "ext_factor",
    "--yarn-attn-factor": "attn_factor",
    "--yarn-beta-fast": "beta_fast",
    "--yarn-beta-slow": "beta_slow",
}


def llama_cpp(
    flags: Sequence[str], metadata: dict[str, Any], *, width: int, trained: int, architecture: str = "llama"
) -> Schedule:
    """Frequencies and scale on cos and sin from the flags, over the metadata of the file."""
    words = iter(flags)
    given: dict[str, Any] = {}
    file = {key.removeprefix(f"{architecture}.rope."): value for key, value in metadata.items()}
    kind = file.get("scaling.type", "linear")
    for word in words:
        if word == "--rope-scaling":
            kind = next(words)
            assert kind in ("none", "linear", "yarn")
        elif word == "--override-kv":
            key, value = next(words).split("=")
            assert value.startswith("float:")
            file[key.removeprefix(f"{architecture}.rope.")] = float(value.removeprefix("float:"))
        else:
            given[FLAGS[word]] = float(next(words))
    theta = given.get("freq_base", file.get("freq_base", 10_000.0))
    factor = given.get("scale", file.get("scaling.factor", 0.0)) or 1.0
    factor = 1.0 if kind == "none" else factor
    old = given.get("orig_ctx", file.get("scaling.original_context_length", trained))
    extrapolated = given.get("ext_factor", -1.0)
    extrapolated = (1.0 if kind == "yarn" else 0.0) if extrapolated < 0 else extrapolated
    attention = given.get("attn_factor", 1.0)
    plain = _plain(width, theta) / np.asarray(file.get("rope_freqs.weight", 1.0))
    inv_freq = plain / factor
    if extrapolated:
        # The factor of the flag is overwritten here, and what the kernel multiplies by is cancelled.
        attention = _mscale(factor) / (1 + 0.1 * math.log(factor))
        kept = 1 - _ramp(width, theta, old, given.get("beta_fast", 32.0), given.get("beta_slow", 1.0), True)
        inv_freq = inv_freq * (1 - kept * extrapolated) + plain * kept * extrapolated
    attention *= file.get("scaling.attn_factor", 1.0)
    return inv_freq, attention * (1 + 0.1 * math.log(factor) if extrapolated else 1.0)

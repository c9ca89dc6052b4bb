"""What each runtime does with each setting, as read in its sources: one row per rope type and key."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

TRANSFORMERS = "transformers 5.24.0"
VLLM = "vLLM 0.32.0"
LLAMA_CPP = "llama.cpp (as in llama-cpp-python 0.3.36)"


@dataclass(frozen=True)
class Fact:
    """What one runtime does with one key of a rope type."""

    read: bool
    does: str
    # The file looked at, below the runtime's root.
    source: str


_ROTARY = "model_executor/layers/rotary_embedding"


def _read(file: str, *keys: str) -> dict[str, Fact]:
    return {key: Fact(True, "reads it", f"{_ROTARY}/{file}") for key in keys}


def _drops(file: str, does: str, *keys: str) -> dict[str, Fact]:
    return {key: Fact(False, does, f"{_ROTARY}/{file}") for key in keys}


_WIDTH = ("rope_type", "rope_theta", "partial_rotary_factor")
_STREAMS = ("mrope_section", "mrope_interleaved")
_ONE_STREAM = "turns every pair by one position stream under this type"

# What `get_rope` builds from a rope dict, for the models that have an implementation of their own.
VLLM_KEYS: Mapping[str, Mapping[str, Fact]] = MappingProxyType(
    {
        "default": MappingProxyType({**_read("base.py", *_WIDTH), **_read("mrope.py", *_STREAMS)}),
        "linear": MappingProxyType(
            {
                # Written with a decimal point: a whole number is taken for a list of factors, which fails.
                **_read("linear_scaling_rope.py", *_WIDTH, "factor"),
                **_drops("__init__.py", _ONE_STREAM, *_STREAMS),
            }
        ),
        "llama3": MappingProxyType(
            {
                **_read("llama3_rope.py", *_WIDTH, "factor", "low_freq_factor", "high_freq_factor"),
                **_read("llama3_rope.py", "original_max_position_embeddings"),
                **_drops("__init__.py", _ONE_STREAM, *_STREAMS),
            }
        ),
        "yarn": MappingProxyType(
            {
                **_read("yarn_scaling_rope.py", *_WIDTH, "factor", "original_max_position_embeddings"),
                **_read("yarn_scaling_rope.py", "beta_fast", "beta_slow", "truncate", "attention_factor"),
                **_read("mrope.py", *_STREAMS),
                **_drops("yarn_scaling_rope.py", "reads it beside the other of the two only", "mscale"),
                **_drops("yarn_scaling_rope.py", "reads it beside the other of the two only", "mscale_all_dim"),
            }
        ),
        "longrope": MappingProxyType(
            {
                **_read("phi3_long_rope_scaled_rope.py", *_WIDTH, "short_factor", "long_factor"),
                **_read("phi3_long_rope_scaled_rope.py", "original_max_position_embeddings"),
                **_read("phi3_long_rope_scaled_rope.py", "short_mscale", "long_mscale"),
                **_drops("__init__.py", "never reads it, and takes the ratio of the two lengths", "factor"),
                **_drops("__init__.py", "never reads it, and takes a formula of the two lengths", "attention_factor"),
                **_drops("__init__.py", _ONE_STREAM, *_STREAMS),
            }
        ),
        "proportional": MappingProxyType(
            {
                **_read("gemma4_rope.py", *_WIDTH),
                **_drops("gemma4_rope.py", "never reads it under this type", "factor"),
                **_drops("__init__.py", _ONE_STREAM, *_STREAMS),
            }
        ),
        # Latent attention: whatever is not plain becomes `deepseek_yarn`.
        "deepseek": MappingProxyType(
            {
                **_read("deepseek_scaling_rope.py", *_WIDTH, "factor", "original_max_position_embeddings"),
                **_read("deepseek_scaling_rope.py", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
                **_drops("deepseek_scaling_rope.py", "always rounds the ramp", "truncate"),
                **_drops("deepseek_scaling_rope.py", "takes the formula of mscale instead", "attention_factor"),
            }
        ),
        "gpt_oss": MappingProxyType(
            {
                **_read("../../models/gpt_oss.py", "rope_type", "rope_theta", "factor", "beta_fast", "beta_slow"),
                **_read("../../models/gpt_oss.py", "original_max_position_embeddings", "truncate"),
                **_drops("../../models/gpt_oss.py", "builds YaRN with the formula's scale", "attention_factor"),
                **_drops("../../models/gpt_oss.py", "turns the whole head", "partial_rotary_factor"),
            }
        ),
    }
)
# Model types without an implementation of their own there: transformers builds their rotation (models/registry.py).
VLLM_BY_TRANSFORMERS = frozenset(
    (
        *("arcee", "cwm", "flex_olmo", "glm", "gpt_neox", "hunyuan_v1_dense", "hunyuan_v1_moe", "olmo", "olmo2"),
        *("olmo3", "phi", "seed_oss", "smollm3", "starcoder2"),
    )
)
# Model types whose implementation takes one rope dict per layer type.
VLLM_PER_LAYER = frozenset(
    ("gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "modernbert", "modernbert-decoder")
)
VLLM_LATENT = frozenset(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"))

# Model types of transformers that take their rope dict by layer type, and never read a flat one.
TRANSFORMERS_PER_LAYER = frozenset((*VLLM_PER_LAYER, "olmo3"))
# Model types whose configuration replaces `head_dim: null` by a number; the others keep it.
TRANSFORMERS_FILLS_HEAD_DIM = frozenset(
    ("llama", "mistral", "arcee", "deepseek_v2", "diffllama", "ernie4_5", "exaone", "internlm3", "nemotron")
)
# The first release that knows a rope type.
TRANSFORMERS_SINCE: Mapping[str, str] = MappingProxyType(
    {"default": "4.31", "linear": "4.31", "dynamic": "4.31", "yarn": "4.43", "longrope": "4.43", "llama3": "4.43"}
)

# Names of architectures in GGUF files, and which of them load a divisor for each pair (src/models/llama.cpp).
GGUF_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "llama": "llama",
        "mistral": "llama",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "phi3": "phi3",
        "gemma": "gemma",
        "gemma2": "gemma2",
        "olmo": "olmo",
        "olmo2": "olmo2",
        "smollm3": "smollm3",
        "gpt_neox": "gptneox",
    }
)
GGUF_DIVISORS = frozenset(("llama",))
LLAMA_CPP_FLAGS: Mapping[tuple[str, str], Fact] = MappingProxyType(
    {
        ("linear", "--yarn-attn-factor"): Fact(True, "multiplies cos and sin by it", "src/llama-context.cpp"),
        ("yarn", "--yarn-attn-factor"): Fact(
            False, "replaces it by the formula 0.1 ln(scale) + 1, which it computes itself", "src/llama-context.cpp"
        ),
        ("yarn", "rope.scaling.attn_factor"): Fact(True, "multiplies the formula by it", "src/llama-context.cpp"),
        ("yarn", "--yarn-beta-fast"): Fact(True, "reads it", "src/llama-context.cpp"),
        ("yarn", "rope.scaling.yarn_beta_fast"): Fact(False, "never reads it in Llama files", "src/llama-model.cpp"),
        ("yarn", "truncate"): Fact(False, "always rounds the ramp", "ggml/src/ggml.c"),
        ("any", "rope_freqs.weight"): Fact(True, "divides every pair by it, in Llama files", "src/models/llama.cpp"),
        ("any", "length"): Fact(False, "fixes the frequencies when it starts", "src/llama-model.cpp"),
    }
)

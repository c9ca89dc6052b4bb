"""Real configurations, cut down to what bears on the rotation, and the right answer for each."""

from types import MappingProxyType
from typing import Any

PHI_SHORT = [1.0, 1.02, 1.03, 1.05]
PHI_LONG = [1.08, 1.6, 24.46, 64.8]

CONFIGS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "llama-2": {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 2,
            "max_position_embeddings": 4096,
            "rope_scaling": None,
        },
        "llama-3.2-1b": {
            "model_type": "llama",
            "head_dim": 64,
            "num_hidden_layers": 2,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
        },
        "qwen2.5-yarn": {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "num_hidden_layers": 2,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000.0,
            "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        },
        "gpt-oss": {
            "model_type": "gpt_oss",
            "head_dim": 64,
            "num_hidden_layers": 2,
            "max_position_embeddings": 131072,
            "rope_theta": 150000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        "phi-4-mini": {
            "model_type": "phi3",
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_hidden_layers": 2,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "longrope", "short_factor": PHI_SHORT, "long_factor": PHI_LONG},
        },
        "deepseek-v2": {
            "model_type": "deepseek_v2",
            "num_hidden_layers": 2,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "max_position_embeddings": 163840,
            "rope_theta": 10000,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
        },
        "gemma-3": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "head_dim": 256,
            "num_hidden_layers": 6,
            "max_position_embeddings": 131072,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "sliding_window_pattern": 6,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "pythia": {
            "model_type": "gpt_neox",
            "hidden_size": 2048,
            "num_attention_heads": 8,
            "num_hidden_layers": 2,
            "max_position_embeddings": 2048,
            "rotary_pct": 0.25,
            "rotary_emb_base": 10000,
        },
        "smollm3": {
            "model_type": "smollm3",
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_hidden_layers": 4,
            "rope_theta": 5000000.0,
            "no_rope_layers": [1, 1, 1, 0],
            "rope_scaling": None,
        },
        "internlm2": {
            "model_type": "internlm2",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 2,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
        "qwen2-vl": {
            "model_type": "qwen2_vl",
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "num_hidden_layers": 2,
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        },
        "qwen3-vl": {
            "model_type": "qwen3_vl_text",
            "head_dim": 128,
            "num_hidden_layers": 2,
            "rope_theta": 5000000.0,
            "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
        },
        "qwen3-v5": {
            "model_type": "qwen3",
            "head_dim": 128,
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
        },
        "cohere2": {
            "model_type": "cohere2",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 4,
            "rope_theta": 50000,
            "rotary_pct": 1.0,
            "sliding_window_pattern": 4,
            "position_embedding_type": "rope_gptj",
        },
        "gemma-4": {
            "model_type": "gemma4_text",
            "head_dim": 256,
            "global_head_dim": 512,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        },
        "olmo-3": {
            "model_type": "olmo3",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 4,
            "max_position_embeddings": 65536,
            "rope_theta": 500000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32,
                "beta_slow": 1,
            },
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        "ministral-3": {
            "model_type": "ministral3",
            "head_dim": 128,
            "num_hidden_layers": 2,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "type": "yarn",
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "max_position_embeddings": 262144,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        "llama-4": {
            "model_type": "llama4_text",
            "head_dim": 128,
            "num_hidden_layers": 4,
            "rope_theta": 500000.0,
            "no_rope_layers": [],
            "attn_temperature_tuning": 4,
            "attn_scale": 0.1,
            "floor_scale": 8192,
        },
    }
)

# group, width, head, layout, attention scale, softmax scale, and the frequencies of some pairs (float64, independent).
EXPECTED: MappingProxyType[str, tuple[tuple[Any, ...], ...]] = MappingProxyType(
    {
        "llama-2": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.8659643234, 63: 0.0001154781985}),),
        "llama-3.2-1b": (("all", 64, 64, "half", 1.0, 1.0, {15: 0.00129054793, 16: 4.29556797e-4, 31: 9.41830673e-8}),),
        "qwen2.5-yarn": (
            ("all", 128, 128, "half", 1.138629436111989, 1.0, {32: 0.0006029411765, 63: 3.102344402e-07}),
        ),
        "gpt-oss": (("all", 64, 64, "half", 1.3465735902799727, 1.0, {9: 0.0317056962, 17: 1.29318701e-4}),),
        "phi-4-mini": (("all", 8, 8, "half", 1.1902380714238083, 1.0, {0: 1 / 1.08, 3: 0.001 / 64.8}),),
        "deepseek-v2": (("all", 64, 64, "interleaved", 1.0, 1.5896261651208736, {16: 0.0055, 31: 3.33380358e-06}),),
        "gemma-3": (
            ("sliding_attention", 256, 256, "half", 1.0, 1.0, {0: 1.0, 127: 1.07460783e-4}),
            ("full_attention", 256, 256, "half", 1.0, 1.0, {0: 0.125, 127: 1.39246732e-7}),
        ),
        "pythia": (("all", 64, 256, "half", 1.0, 1.0, {1: 0.7498942093, 31: 0.0001333521432}),),
        "smollm3": (("rope", 128, 128, "half", 1.0, 1.0, {1: 0.7858299804}), ("nope", None)),
        "internlm2": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.7919114945, 63: 4.136459203e-07}),),
        "qwen2-vl": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.8058421878}),),
        "qwen3-v5": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.7773650302}),),
        "cohere2": (
            ("sliding_attention", 128, 128, "interleaved", 1.0, 1.0, {1: 50000 ** (-1 / 64)}),
            ("full_attention", None),
        ),
        "gemma-4": (
            ("sliding_attention", 256, 256, "half", 1.0, 1.0, {127: 1.07460783e-4}),
            ("full_attention", 512, 512, "half", 1.0, 1.0, {63: 1e6 ** (-63 / 256), 64: 0.0, 255: 0.0}),
        ),
        "olmo-3": (
            ("sliding_attention", 128, 128, "half", 1.0, 1.0, {63: 500000 ** (-63 / 64)}),
            ("full_attention", 128, 128, "half", 1.2079441541679836, 1.0, {63: 500000 ** (-63 / 64) / 8}),
        ),
        "ministral-3": (("all", 128, 128, "half", 1.0, 1.0, {63: 1e6 ** (-63 / 64) / 16}),),
    }
)
# What length-dependent configurations were asked at.
LENGTHS: MappingProxyType[str, int] = MappingProxyType({"internlm2": 65536, "phi-4-mini": 4097})

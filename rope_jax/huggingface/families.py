"""What a checkpoint means beyond its file: one frozen row for the model types that share it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rope_jax.layout import Layout


@dataclass(frozen=True)
class Family:
    """Defaults and habits of some model types, where the file leaves them out."""

    models: tuple[str, ...]
    theta: float | None = 10_000.0
    layout: Layout = "half"
    # Share of the head that turns.
    fraction: float = 1.0
    head_dim: int | None = None
    # Heads of the global layers.
    global_head_dim: int | None = None
    # Every `pattern`-th layer is global, the others slide; with `first_global` counted from the first layer on.
    pattern: int | None = None
    first_global: bool = False
    # Sliding layers have a base of their own, and are left alone by the scaling.
    local_theta: float | None = None
    plain_local: bool = False
    # Layers of this type have no rotation; with `nope_needs_window` only where the file sets a sliding window.
    nope_type: str | None = None
    nope_needs_window: bool = False
    # Every so many-th layer has no rotation, where the file does not list them.
    nope_interval: int | None = None
    # Queries of layers without rotation grow with their position (Llama 4).
    nope_temperature: bool = False
    # The softmax scale grows by M(mscale_all_dim)^2 (DeepSeek).
    softmax_mscale: bool = False
    # m-RoPE sections are dealt out in turn instead of in blocks.
    mrope_interleaved: bool = False
    # The rope dict that holds where the file has none.
    rope: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    # What the rules here cannot express; such files are refused.
    refused: str = ""


_GPT_OSS = MappingProxyType(
    {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
)
_LLAMA3 = MappingProxyType(
    {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
)
_MISTRAL = MappingProxyType(
    {
        "rope_type": "yarn",
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
)
_MINISTRAL3 = MappingProxyType(
    {**_MISTRAL, "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384}
)
_MISTRAL4 = MappingProxyType({**_MISTRAL, "factor": 128.0, "original_max_position_embeddings": 8192})
_GEMMA4 = MappingProxyType(
    {
        "sliding_attention": MappingProxyType({"rope_type": "default", "rope_theta": 1e4}),
        "full_attention": MappingProxyType(
            {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
        ),
    }
)
_VISION_GRID = "its m-RoPE deals the sections out in a way of its own"

FAMILIES: tuple[Family, ...] = (
    Family(("llama", "mistral", "ministral", "qwen", "qwen2", "qwen2_moe", "qwen3_moe", "deepseek", "yi")),
    Family(("phi3", "olmo", "olmo2", "olmoe", "starcoder2", "granite", "granitemoe", "granitemoeshared")),
    Family(("arcee", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe", "dots1", "diffllama", "minicpm", "falcon")),
    Family(("internlm", "internlm2", "internlm3", "gpt_neox_japanese", "aquila", "xverse")),
    Family(("qwen3", "seed_oss"), head_dim=128),
    Family(("gemma", "gemma2"), head_dim=256),
    Family(("mixtral", "phimoe", "lfm2", "lfm2_moe", "minimax", "solar_open"), theta=1e6),
    Family(("minimax_m2",), theta=5e6, head_dim=128),
    Family(("bitnet", "mllama_text_model", "flex_olmo", "exaone"), theta=5e5),
    Family(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), theta=1e6),
    Family(("qwen3_vl", "qwen3_vl_text"), theta=5e5, head_dim=128, mrope_interleaved=True),
    Family(("qwen3_vl_moe", "qwen3_vl_moe_text"), theta=5e5, head_dim=128, mrope_interleaved=True),
    Family(("qwen3_5", "qwen3_5_text"), fraction=0.25, head_dim=256, mrope_interleaved=True),
    Family(("qwen3_5_moe", "qwen3_5_moe_text"), fraction=0.25, head_dim=256, mrope_interleaved=True),
    Family(("qwen3_next",), fraction=0.25, head_dim=256),
    Family(("phi", "persimmon", "nemotron", "glm4_moe"), fraction=0.5),
    Family(("stablelm", "stablelm_epoch", "gpt_neox"), fraction=0.25),
    Family(("gptj", "codegen"), layout="interleaved"),
    Family(("glm", "glm4"), layout="interleaved", fraction=0.5, head_dim=128),
    # Its rotary width is half of kv_channels, its base 10000 rope_ratio.
    Family(("chatglm",), layout="interleaved", fraction=0.5),
    Family(("cohere",), theta=5e5, layout="interleaved"),
    Family(("cohere2",), layout="interleaved", pattern=4, nope_type="full_attention"),
    Family(("helium",), theta=1e5, layout="interleaved", head_dim=128),
    Family(("ernie4_5",), theta=5e5, layout="interleaved", head_dim=128),
    Family(("ernie4_5_moe",), theta=5e5, layout="interleaved"),
    Family(("exaone4",), pattern=4, nope_type="full_attention", nope_needs_window=True),
    Family(("smollm3",), theta=2e6, nope_interval=4),
    Family(
        ("llama4", "llama4_text"),
        theta=5e5,
        layout="interleaved",
        head_dim=128,
        nope_interval=4,
        nope_temperature=True,
    ),
    Family(("gemma3", "gemma3_text"), theta=1e6, head_dim=256, pattern=6, local_theta=1e4, plain_local=True),
    Family(("gemma3n", "gemma3n_text"), theta=1e6, head_dim=256, pattern=5, local_theta=1e4, plain_local=True),
    Family(("gemma4", "gemma4_text"), head_dim=256, global_head_dim=512, pattern=6, rope=_GEMMA4),
    Family(("olmo3",), theta=5e5, pattern=4, plain_local=True),
    Family(("modernbert", "modernbert-decoder"), theta=1.6e5, pattern=3, first_global=True, local_theta=1e4),
    Family(("gpt_oss",), theta=1.5e5, head_dim=64, rope=_GPT_OSS),
    Family(("apertus",), theta=1.2e7, rope=MappingProxyType({**_LLAMA3, "factor": 8.0})),
    Family(("cwm",), theta=1e6, head_dim=128, rope=MappingProxyType({**_LLAMA3, "factor": 16.0})),
    Family(("ministral3",), head_dim=128, rope=_MINISTRAL3),
    Family(("mistral4",), layout="interleaved", softmax_mscale=True, rope=_MISTRAL4),
    Family(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "youtu", "glm4_moe_lite", "glm_moe_dsa"),
        layout="interleaved",
        softmax_mscale=True,
    ),
    Family(("longcat_flash",), theta=1e7, layout="interleaved", softmax_mscale=True),
    Family(("nomic_bert",), theta=1e3),
    Family(("glm4v", "glm4v_text", "glm4v_moe", "glm4v_moe_text", "glm_ocr", "glm_ocr_text"), refused=_VISION_GRID),
    Family(("ernie4_5_vl_moe", "ernie4_5_vl_moe_text", "hunyuan_vl", "hunyuan_vl_text"), refused=_VISION_GRID),
    Family(
        ("deepseek_v4",),
        refused="its layers turn by two bases, main and compressed, that its layer types do not name",
    ),
)
UNKNOWN = Family(models=(), theta=None)
BY_MODEL: Mapping[str, Family] = MappingProxyType({model: row for row in FAMILIES for model in row.models})


def family_of(model_type: Any) -> Family:
    """The row of a model type; `UNKNOWN`, without a default base, for types that have none.

    Raises:
      ValueError: a type whose rotation no row can express.
    """
    family = BY_MODEL.get(model_type, UNKNOWN) if isinstance(model_type, str) else UNKNOWN
    if family.refused:
        raise ValueError(
            f"`model_type` must be one whose rotation can be expressed; got {model_type!r}: {family.refused}. "
            "Build its ModelRope by hand."
        )
    return family

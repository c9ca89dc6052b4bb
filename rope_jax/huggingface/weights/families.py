"""The families whose weights are read and written: a frozen row for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rope_jax.huggingface.weights import names
from rope_jax.huggingface.weights import readings as read
from rope_jax.huggingface.weights.names import Entry, Spelling
from rope_jax.huggingface.weights.settings import Settings
from rope_jax.huggingface.weights.wording import brief
from rope_jax.spec import ModelRope

_INV_FREQ = "{model}.layers.{layer}.self_attn.rotary_emb.inv_freq"
_BASE = MappingProxyType({"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False})
_LLAMA = (read.sizes, read.grouped_heads, read.rms_norm, read.gated, read.biases)
_GEMMA = (
    *(read.sizes, read.grouped_heads, read.rms_norm),
    *(read.biases, read.gemma_block),
)


@dataclass(frozen=True)
class Family:
    """How model types of one kind state their shape, and what they call their tensors."""

    models: tuple[str, ...]
    # What saved models are called, `model_type` and class of transformers.
    saved_as: tuple[str, str]
    # Values of keys that a file leaves out.
    defaults: Mapping[str, Any]
    readings: tuple[Callable[[Settings], dict[str, Any]], ...]
    entries: tuple[Entry, ...]
    # Choices of the decoder that no key states.
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({"embed_scale": 1.0}))
    windows: Callable[[Settings, ModelRope], read.Windows] = read.no_windows
    # The first one is written.
    spellings: tuple[Spelling, ...] = (Spelling(),)
    # Tensors of a checkpoint that are no weights of the language model: names, and beginnings of names.
    buffers: tuple[str, ...] = (_INV_FREQ,)
    other_parts: tuple[str, ...] = ()
    # Special tokens of the published tokenizer that have no row in the embedding.
    spare_tokens: tuple[str, ...] = ()
    # How rotary settings are written: whether there is one dict per layer type, whether layers may be left unrotated,
    # and older names of the keys.
    by_type: bool = False
    nope: bool = False
    old_keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def _sizes(**changed: Any) -> Mapping[str, Any]:
    """The documented defaults of a model type."""
    return MappingProxyType({**_BASE, **changed})


_GEMMA_DEFAULTS = MappingProxyType(
    {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    }
)
_LARGE = MappingProxyType({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32})
_QWEN = MappingProxyType(
    {
        **_LARGE,
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
)

FAMILIES: tuple[Family, ...] = (
    Family(
        ("llama",),
        ("llama", "LlamaForCausalLM"),
        _sizes(
            **_LARGE,
            **{"vocab_size": 32000, "intermediate_size": 11008, "num_key_value_heads": None},
            **{"max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False},
        ),
        _LLAMA,
        names.LLAMA,
    ),
    Family(
        ("mistral",),
        ("mistral", "MistralForCausalLM"),
        _sizes(
            **_LARGE,
            **{"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8},
            **{"max_position_embeddings": 131072, "sliding_window": 4096},
        ),
        _LLAMA,
        names.LLAMA,
        windows=read.one_window,
    ),
    Family(
        ("qwen2",),
        ("qwen2", "Qwen2ForCausalLM"),
        _sizes(**_QWEN),
        (read.sizes, read.grouped_heads, read.rms_norm, read.gated),
        names.LLAMA,
        fixed=MappingProxyType({"embed_scale": 1.0, "bias": ("qkv",)}),
        windows=read.late_windows,
    ),
    Family(
        ("qwen3",),
        ("qwen3", "Qwen3ForCausalLM"),
        _sizes(**_QWEN, head_dim=128, attention_bias=False),
        _LLAMA,
        names.LLAMA,
        fixed=MappingProxyType({"embed_scale": 1.0, "qk_norm": True}),
        windows=read.late_windows,
    ),
    Family(
        ("phi3",),
        ("phi3", "Phi3ForCausalLM"),
        _sizes(
            **{"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": None, "rms_norm_eps": 1e-5, "sliding_window": None},
            **{"max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
        ),
        _LLAMA,
        names.PHI3,
        windows=read.one_window,
    ),
    Family(
        ("gemma2",),
        ("gemma2", "Gemma2ForCausalLM"),
        _sizes(
            **_GEMMA_DEFAULTS,
            **{"vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window_pattern": 2},
            **{"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
        ),
        _GEMMA,
        names.GEMMA,
        fixed=MappingProxyType({}),
        windows=read.alternating_windows,
    ),
    Family(
        ("gemma3_text", "gemma3"),
        ("gemma3_text", "Gemma3ForCausalLM"),
        _sizes(
            **_GEMMA_DEFAULTS,
            **{"vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6},
            **{"final_logit_softcapping": None, "attn_logit_softcapping": None},
        ),
        _GEMMA,
        names.GEMMA,
        fixed=MappingProxyType({"qk_norm": True}),
        windows=read.alternating_windows,
        # Alone, and inside a model with vision, as it is written now and as it was written first.
        spellings=(
            Spelling(),
            Spelling("model.language_model", "lm_head"),
            Spelling("language_model.model", "language_model.lm_head"),
        ),
        other_parts=(
            *("vision_tower.", "multi_modal_projector."),
            *("model.vision_tower.", "model.multi_modal_projector."),
        ),
        spare_tokens=("<image_soft_token>",),
        by_type=True,
    ),
    Family(
        ("smollm3",),
        ("smollm3", "SmolLM3ForCausalLM"),
        _sizes(
            **{"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36},
            **{"num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768},
            **{"use_sliding_window": False, "sliding_window": None, "attention_bias": False, "mlp_bias": False},
            tie_word_embeddings=True,
        ),
        _LLAMA,
        names.LLAMA,
        windows=read.nope_windows,
        nope=True,
    ),
    Family(
        ("olmo2",),
        ("olmo2", "Olmo2ForCausalLM"),
        _sizes(
            **_LARGE,
            **{"vocab_size": 50304, "intermediate_size": 11008, "num_key_value_heads": None, "rms_norm_eps": 1e-5},
            **{"max_position_embeddings": 2048, "attention_bias": False},
        ),
        _LLAMA,
        names.OLMO2,
        fixed=MappingProxyType({"embed_scale": 1.0, "qk_norm": "full", "norm_placement": "post"}),
    ),
    Family(
        ("gpt_neox",),
        ("gpt_neox", "GPTNeoXForCausalLM"),
        MappingProxyType(
            {
                **{"vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44},
                **{"num_attention_heads": 64, "hidden_act": "gelu", "layer_norm_eps": 1e-5, "attention_bias": True},
                **{"tie_word_embeddings": False, "use_parallel_residual": True, "max_position_embeddings": 2048},
            }
        ),
        (read.sizes, read.layer_norm, read.plain_mlp, read.neox_block),
        names.GPT_NEOX,
        spellings=(Spelling("gpt_neox", "embed_out"), Spelling("gpt_neox", "lm_head")),
        buffers=(
            "{model}.layers.{layer}.attention.bias",
            "{model}.layers.{layer}.attention.masked_bias",
            "{model}.layers.{layer}.attention.rotary_emb.inv_freq",
        ),
        old_keys=MappingProxyType({"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}),
    ),
)
BY_MODEL: Mapping[str, Family] = MappingProxyType({model: row for row in FAMILIES for model in row.models})


def family_of(raw: Mapping[str, Any]) -> Family:
    """The row of a configuration's model type.

    Raises:
      ValueError: a model type without a row, or weights in a form that no row has.
    """
    model = raw.get("model_type")
    if not isinstance(model, str) or model not in BY_MODEL:
        raise ValueError(
            f"`model_type` must be one whose weights are known, {', '.join(sorted(BY_MODEL))}; got {brief(model)}. "
            "from_huggingface reads the rotary settings of others."
        )
    if raw.get("quantization_config"):
        raise ValueError(
            f"`quantization_config` must be absent; got {brief(raw['quantization_config'])}. "
            "Load the checkpoint that is not quantized."
        )
    return BY_MODEL[model]

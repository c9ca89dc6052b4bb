"""Which stored tensor holds which parameter: one strict table per arrangement of names.

In a name `{model}` and `{head}` stand for the spelling of the checkpoint, `{layer}` for the layer's index. A tensor
whose parameters the decoder does not have (a bias, a QK-norm, an untied head) is no part of its table.
"""

from dataclasses import dataclass

from rope_jax.huggingface.weights.codecs import Codec, Copy, HeadRows, OnePlus, Rows


@dataclass(frozen=True)
class Entry:
    """A stored tensor, the parameters that it holds, and how."""

    name: str
    parameters: tuple[str, ...]
    codec: Codec


@dataclass(frozen=True)
class Spelling:
    """What stands for `{model}` and `{head}`."""

    model: str = "model"
    head: str = "lm_head"


def layer_dense(name: str, *parameters: str, codec: Codec | None = None) -> tuple[Entry, ...]:
    """Weight and bias of a projection of every layer, or of several in one tensor."""
    stored, blocks = "{model}.layers.{layer}." + name, tuple(f"blocks.{parameter}" for parameter in parameters)
    codec = Rows() if codec is None else codec
    return (
        Entry(f"{stored}.weight", tuple(f"{block}.kernel" for block in blocks), codec),
        Entry(f"{stored}.bias", tuple(f"{block}.bias" for block in blocks), codec),
    )


def layer_norm(name: str, parameter: str, codec: Codec | None = None) -> tuple[Entry, ...]:
    """Scale and bias of a norm of every layer."""
    stored, codec = "{model}.layers.{layer}." + name, Copy() if codec is None else codec
    return (
        Entry(f"{stored}.weight", (f"blocks.{parameter}.scale",), codec),
        Entry(f"{stored}.bias", (f"blocks.{parameter}.bias",), Copy()),
    )


def ends(embedding: str, norm: str, codec: Codec | None = None) -> tuple[Entry, ...]:
    """Embedding, final norm and head."""
    codec = Copy() if codec is None else codec
    return (
        Entry("{model}." + embedding + ".weight", ("embedding",), Copy()),
        Entry("{model}." + norm + ".weight", ("norm.scale",), codec),
        Entry("{model}." + norm + ".bias", ("norm.bias",), Copy()),
        Entry(HEAD, ("unembedding",), Rows()),
    )


HEAD = "{head}.weight"

_ATTENTION = (
    *layer_dense("self_attn.q_proj", "attention.query"),
    *layer_dense("self_attn.k_proj", "attention.key"),
    *layer_dense("self_attn.v_proj", "attention.value"),
    *layer_dense("self_attn.o_proj", "attention.out"),
)
_MLP = (
    *layer_dense("mlp.gate_proj", "mlp.gate"),
    *layer_dense("mlp.up_proj", "mlp.up"),
    *layer_dense("mlp.down_proj", "mlp.down"),
)
_QK_NORMS = (
    *layer_norm("self_attn.q_norm", "attention.query_norm"),
    *layer_norm("self_attn.k_norm", "attention.key_norm"),
)
_PRE_NORMS = (
    *layer_norm("input_layernorm", "attention_norm"),
    *layer_norm("post_attention_layernorm", "mlp_norm"),
)

LLAMA = (*ends("embed_tokens", "norm"), *_ATTENTION, *_QK_NORMS, *_MLP, *_PRE_NORMS)
OLMO2 = (
    *ends("embed_tokens", "norm"),
    *_ATTENTION,
    *_QK_NORMS,
    *_MLP,
    *layer_norm("post_attention_layernorm", "attention_post_norm"),
    *layer_norm("post_feedforward_layernorm", "mlp_post_norm"),
)
PHI3 = (
    *ends("embed_tokens", "norm"),
    *layer_dense("self_attn.qkv_proj", "attention.query", "attention.key", "attention.value"),
    *layer_dense("self_attn.o_proj", "attention.out"),
    *layer_dense("mlp.gate_up_proj", "mlp.gate", "mlp.up"),
    *layer_dense("mlp.down_proj", "mlp.down"),
    *_PRE_NORMS,
)
GEMMA = (
    *ends("embed_tokens", "norm", OnePlus()),
    *_ATTENTION,
    *layer_norm("self_attn.q_norm", "attention.query_norm", OnePlus()),
    *layer_norm("self_attn.k_norm", "attention.key_norm", OnePlus()),
    *_MLP,
    *layer_norm("input_layernorm", "attention_norm", OnePlus()),
    *layer_norm("post_attention_layernorm", "attention_post_norm", OnePlus()),
    *layer_norm("pre_feedforward_layernorm", "mlp_norm", OnePlus()),
    *layer_norm("post_feedforward_layernorm", "mlp_post_norm", OnePlus()),
)
GPT_NEOX = (
    *ends("embed_in", "final_layer_norm"),
    *layer_dense("attention.query_key_value", "attention.query", "attention.key", "attention.value", codec=HeadRows()),
    *layer_dense("attention.dense", "attention.out"),
    *layer_dense("mlp.dense_h_to_4h", "mlp.up"),
    *layer_dense("mlp.dense_4h_to_h", "mlp.down"),
    *_PRE_NORMS,
)

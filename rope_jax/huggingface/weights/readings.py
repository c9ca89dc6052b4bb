"""Small readings of a raw configuration, of which every family's row is put together."""

from typing import Any

from rope_jax.huggingface.weights.settings import SLIDING, Settings
from rope_jax.huggingface.weights.wording import brief
from rope_jax.spec import ModelRope

Windows = tuple[int | None, ...]


def sizes(settings: Settings) -> dict[str, Any]:
    """What every family has."""
    # Its key is no part of any family here; such a model has no rotation, and slopes that the decoder would not add.
    settings_off(settings, "alibi")
    embed, heads = settings.count("hidden_size"), settings.count("num_attention_heads")
    return {
        "vocab": settings.count("vocab_size"),
        "embed": embed,
        "layers": settings.count("num_hidden_layers"),
        "heads": heads,
        "head_dim": head_dim(settings, embed, heads),
        "mlp": settings.count("intermediate_size"),
        "tied": settings.flag("tie_word_embeddings"),
    }


def head_dim(settings: Settings, embed: int, heads: int) -> int:
    """The file's, else the family's, else hidden size / heads."""
    stated = settings.raw.get("head_dim") or settings.defaults.get("head_dim")
    if stated is None and embed % heads:
        raise ValueError(
            f"`hidden_size` must be a multiple of `num_attention_heads` where there is no `head_dim`; got {embed} and "
            f"{heads}. Add head_dim."
        )
    return embed // heads if stated is None else settings.count("head_dim")


def grouped_heads(settings: Settings) -> dict[str, Any]:
    """Key and value heads; null: as many as query heads."""
    return {"kv_heads": settings.maybe_count("num_key_value_heads")}


def rms_norm(settings: Settings) -> dict[str, Any]:
    """RMSNorm and its epsilon."""
    return {"norm": "rms", "norm_epsilon": settings.number("rms_norm_eps")}


def layer_norm(settings: Settings) -> dict[str, Any]:
    """LayerNorm and its epsilon."""
    return {"norm": "layer", "norm_epsilon": settings.number("layer_norm_eps")}


def gated(settings: Settings) -> dict[str, Any]:
    """A gated MLP."""
    return {"gated": True, "activation": settings.activation("hidden_act")}


def plain_mlp(settings: Settings) -> dict[str, Any]:
    """An MLP without a gate."""
    return {"gated": False, "activation": settings.activation("hidden_act")}


def biases(settings: Settings) -> dict[str, Any]:
    """Biases that the file switches on, for the switches that the family has."""
    parts: tuple[str, ...] = ()
    if settings.defaults.get("attention_bias") is not None and settings.flag("attention_bias"):
        parts += ("qkv", "out")
    if settings.defaults.get("mlp_bias") is not None and settings.flag("mlp_bias"):
        parts += ("mlp",)
    return {"bias": parts}


def neox_block(settings: Settings) -> dict[str, Any]:
    """GPT-NeoX: biases of the MLP always, of attention by a switch; both branches read the same input, or in turn."""
    attention = ("qkv", "out") if settings.flag("attention_bias") else ()
    return {"bias": (*attention, "mlp"), "parallel": settings.flag("use_parallel_residual")}


def gemma_block(settings: Settings) -> dict[str, Any]:
    """Gemma: norms around both branches, embeddings times sqrt(width), a scale and caps of its own."""
    settings_off(settings, "use_bidirectional_attention")
    return {
        "norm_placement": "both",
        "gated": True,
        "activation": settings.activation("hidden_activation"),
        "embed_scale": settings.count("hidden_size") ** 0.5,
        "scale": settings.number("query_pre_attn_scalar") ** -0.5,
        "softcap": settings.maybe_number("attn_logit_softcapping"),
        "logit_softcap": settings.maybe_number("final_logit_softcapping"),
    }


def settings_off(settings: Settings, key: str) -> None:
    """Refuse a switch that the decoder does not have."""
    if settings.raw.get(key):
        raise ValueError(
            f"`{key}` must be absent or false; got {brief(settings.raw[key])}. The decoder has nothing that follows it."
        )


def no_windows(settings: Settings, rope: ModelRope) -> Windows:
    """Every layer sees the whole past."""
    return (None,) * len(rope.layer_groups)


def one_window(settings: Settings, rope: ModelRope) -> Windows:
    """One sliding window for all layers, or none."""
    window, types = settings.maybe_count("sliding_window"), settings.layer_types()
    if types is not None and len(set(types)) > 1:
        raise ValueError(
            f"`layer_types` must be alike for the model type {settings.model!r}, whose layers all have one window; got "
            f"{sorted(set(types))}. Remove it, or name the model type that the file is meant for."
        )
    return (window,) * len(rope.layer_groups)


def late_windows(settings: Settings, rope: ModelRope) -> Windows:
    """A window, where it is switched on, from layer `max_window_layers` on or where `layer_types` says so (Qwen)."""
    types = settings.layer_types()
    on = settings.flag("use_sliding_window") and settings.find("sliding_window") is not None
    if types is None:
        first = settings.find("max_window_layers") if on else len(rope.layer_groups)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise ValueError(f"`max_window_layers` must be an integer from 0 on; got {brief(first)}. Correct it.")
        slides: tuple[bool, ...] = tuple(layer >= first for layer in range(len(rope.layer_groups)))
    else:
        slides = tuple(kind == SLIDING for kind in types)
        _check_window(any(slides), on)
    return tuple(settings.count("sliding_window") if slide else None for slide in slides)


def nope_windows(settings: Settings, rope: ModelRope) -> Windows:
    """A window, where it is switched on, on the layers that do not rotate, or where `layer_types` says so (SmolLM3)."""
    types = settings.layer_types()
    on = settings.flag("use_sliding_window") and settings.find("sliding_window") is not None
    if types is None:
        slides: tuple[bool, ...] = tuple(on and rope.specs[group] is None for group in rope.layer_groups)
    else:
        slides = tuple(kind == SLIDING for kind in types)
        _check_window(any(slides), on)
    return tuple(settings.count("sliding_window") if slide else None for slide in slides)


def alternating_windows(settings: Settings, rope: ModelRope) -> Windows:
    """A window on all layers but every so many-th, or where `layer_types` says so (Gemma)."""
    every, types = settings.count("sliding_window_pattern"), settings.layer_types()
    if types is None:
        slides: tuple[bool, ...] = tuple(bool((layer + 1) % every) for layer in range(len(rope.layer_groups)))
    else:
        slides = tuple(kind == SLIDING for kind in types)
    _check_window(any(slides), settings.find("sliding_window") is not None)
    return tuple(settings.count("sliding_window") if slide else None for slide in slides)


def _check_window(slides: bool, on: bool) -> None:
    if slides and not on:
        raise ValueError(
            f"`sliding_window` must be given and switched on where layers are of the type {SLIDING}; got neither. "
            "Add it, or correct `layer_types`."
        )

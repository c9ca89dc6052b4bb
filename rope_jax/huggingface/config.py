"""Read a Hugging Face configuration into a ModelRope."""

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rope_jax.huggingface.families import family_of
from rope_jax.huggingface.grammar import Fields, Log, Rope
from rope_jax.huggingface.heads import read_axes, read_layout, read_theta, read_widths
from rope_jax.huggingface.layers import LOCAL, read_layers
from rope_jax.huggingface.longrope import LONGROPE_KEYS, longrope
from rope_jax.huggingface.methods import METHODS, SHARED, Method, deepseek_softmax_scale
from rope_jax.huggingface.rope_dict import RopeDict, read_rope_dict, read_type
from rope_jax.huggingface.source import read_config
from rope_jax.logit_scales import Llama4QueryScale, Mistral3QueryScale
from rope_jax.scaling import Drop, YaRN
from rope_jax.spec import ModelRope, RopeSpec

READ: Mapping[str, Method] = MappingProxyType({**METHODS, "longrope": Method(longrope, LONGROPE_KEYS)})
ALL_KEYS = frozenset(key for method in READ.values() for key in method.keys)
# Settings of the whole model that change how positions are used, and that no spec can carry.
UNREAD = ("use_dynamic_ntk", "use_logn_attn", "dual_chunk_attention_config", "rotary_scaling_factor")


def from_huggingface(source: Mapping[str, Any] | str | os.PathLike[str], *, strict: bool = True) -> ModelRope:
    """The rotary settings of a Hugging Face checkpoint, from its raw configuration.

    Reads both forms of the file, `rope_scaling` beside `rope_theta` and `rope_parameters` (flat, or one dict per layer
    type), the spellings of the published families, and the defaults of their model types where the file leaves
    something out. The dict is neither changed nor kept.

    Args:
      source: a configuration as a dict, a config.json, a folder that holds one, or a hub id (needs huggingface_hub).
      strict: refuse what would have to be guessed. False takes the likeliest reading and says so in `.warnings`.

    Returns:
      A ModelRope: groups "all" where layers are alike, the layer types of the configuration where they turn
      differently, "rope" and "nope" where some layers do not turn (their spec is None; Llama 4's have one that turns
      nothing and scales queries). `.sources` says for every number where it came from, `.warnings` what looked wrong.

    Raises:
      ValueError, TypeError: an unknown rope type, key or value, settings that contradict each other, and in strict
        mode whatever would have to be guessed; the message names the key and the cure.
      FileNotFoundError: no such file, folder or repository.

    Differs from transformers 5.24 where that departs from the checkpoint: `truncate` is honoured in nested dicts, `su`
    is LongRoPE, `head_dim: null` is absence, a flat dict of Gemma 3 applies to its global layers, Phi-3.5-MoE uses its
    long list, `mscale` alone follows DeepSeek.

    Example:
      >>> config = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 5e5}
      >>> from_huggingface(config).sources["theta"]
      'rope_theta'
    """
    raw = read_config(source)
    log = Log(strict)
    config, model = Fields(raw), str(raw.get("model_type"))
    family = family_of(raw.get("model_type"))
    for key in UNREAD:
        if raw.get(key):
            log.doubt(
                f"`{key}` must be absent, since it changes positions in a way that no spec carries; got {raw[key]!r}."
            )
    settings = read_rope_dict(config, family, model, log)
    layers = read_layers(config, family, log, by_type=settings.by_type, nope_types=settings.nope_types)
    specs: dict[str, RopeSpec | None] = {}
    groups = sorted(set(layers.groups), key=layers.groups.index)
    turning = [group for group in groups if group not in layers.nope]
    for group in groups:
        members = tuple(layer for layer, name in enumerate(layers.groups) if name == group)
        prefix = f"{group}." if len(turning) > 1 else ""
        rope = Rope(Fields({}), Fields({}), config, family, model, log, group, members, prefix)
        if group not in layers.nope:
            specs[group] = _spec(rope_of(settings, rope))
        else:
            specs[group] = _still(rope_of(settings, rope)) if family.nope_temperature else None
    return ModelRope(specs, layers.groups, log.sources, tuple(log.warnings))


def rope_of(settings: RopeDict, rope: Rope) -> Rope:
    """The same group with the dict that holds for it."""
    outer = settings.outer
    if settings.groups is None:
        plain = rope.group == LOCAL and settings.plain_local
        # A sliding layer that the scaling leaves alone still has the dict's base, where it has none of its own.
        return replace(rope, outer=outer) if plain else replace(rope, own=outer)
    if settings.groups.get(rope.group) is None:
        raise ValueError(
            f"`{outer.at(rope.group)}` must be given, since layers of that type exist and the others have theirs; got "
            "none. Add it, or null for layers that do not rotate."
        )
    return replace(rope, own=settings.groups[rope.group], outer=outer)


def _spec(rope: Rope) -> RopeSpec:
    rope_type = read_type(rope, READ)
    method = READ[rope_type]
    rope.refuse_unknown(rope_type, (*SHARED, *method.keys), ALL_KEYS)
    theta = read_theta(rope)
    rotary_dim, head_dim = read_widths(rope, whole=method.whole)
    transform = method.build(rope, rotary_dim // 2)
    return RopeSpec(
        rotary_dim,
        theta=theta,
        transform=transform,
        layout=read_layout(rope),
        head_dim=head_dim,
        pair_axes=read_axes(rope, rotary_dim // 2),
        softmax_scale=_softmax_scale(rope, transform),
        query_scale=_mistral_scale(rope),
    )


def _still(rope: Rope) -> RopeSpec | None:
    """None; Llama 4's layers without rotation scale their queries, so they need a spec to say it."""
    tuned = rope.config.find("attn_temperature_tuning")
    if not rope.family.nope_temperature or (tuned is not None and not tuned[0]):
        return None
    rotary_dim, head_dim = read_widths(rope, whole=False)
    scale, floor = (rope.config.find(key) for key in ("attn_scale", "floor_scale"))
    defaults = Llama4QueryScale()
    query_scale = Llama4QueryScale(
        scale=float(scale[0]) if scale else defaults.scale, floor=int(floor[0]) if floor else defaults.floor
    )
    rope.note("nope.query_scale", "attn_scale, floor_scale" if scale and floor else f"default of {rope.model}")
    return RopeSpec(
        rotary_dim,
        theta=read_theta(rope),
        transform=Drop(),
        layout=read_layout(rope),
        head_dim=head_dim,
        query_scale=query_scale,
    )


def _softmax_scale(rope: Rope, transform: Any) -> float:
    """DeepSeek's second use of `mscale_all_dim`: it scales the logits of the whole head, unrotated channels too."""
    if not isinstance(transform, YaRN) or not transform.mscale_all_dim:
        return 1.0
    if not rope.family.models:
        rope.log.doubt(
            f"`{rope.own.at('mscale_all_dim')}` must be absent for the model type {rope.model!r}, of which it is not "
            f"known whether its softmax scale follows it; got {transform.mscale_all_dim}. Build the ModelRope by hand."
        )
    if not rope.family.softmax_mscale:
        return 1.0
    rope.note("softmax_scale", rope.own.at("mscale_all_dim"))
    return deepseek_softmax_scale(transform)


def _mistral_scale(rope: Rope) -> Mistral3QueryScale | None:
    beta = rope.number("llama_4_scaling_beta", "at least 0", lambda v: v >= 0, name="query_scale")
    if not beta:
        return None
    length = rope.own.integer("original_max_position_embeddings")
    if length is None:
        raise ValueError(
            f"`{rope.own.at('original_max_position_embeddings')}` must be given beside "
            "`llama_4_scaling_beta`; got none. Add it."
        )
    return Mistral3QueryScale(beta=float(beta), original_length=length[0])

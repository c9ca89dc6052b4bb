"""LongRoPE dicts: two lists, one scale."""

import math
from typing import Any

from rope_jax.huggingface.grammar import Rope, check_real
from rope_jax.huggingface.methods import original_length
from rope_jax.scaling import AttentionTemperature, FrequencyTransform, LongRoPE, Rescale, chain

LONGROPE_KEYS = (
    *("short_factor", "long_factor", "factor", "attention_factor", "attn_factor"),
    *("short_mscale", "long_mscale"),
)


def longrope(rope: Rope, pairs: int) -> FrequencyTransform:
    """The transform of a LongRoPE dict.

    Equal lists with an explicit scale need no length: they are a static schedule, one factor per pair.
    """
    short, long = _entries(rope, "short_factor", pairs), _entries(rope, "long_factor", pairs)
    scale = _scale(rope)
    factor = rope.factor(required=False)
    if short == long and scale is not None:
        kept = Rescale(factors=short)
        return kept if scale == 1 else chain(kept, AttentionTemperature(scale=scale))
    length = original_length(rope)
    if factor is None:
        factor = _factor(rope, length)
    multiplier = rope.number("attn_factor", "above 0", lambda v: v > 0, name="attention_scale")
    if multiplier is not None:
        if scale is not None:
            raise ValueError(
                f"`{rope.own.at('attn_factor')}` must not stand beside an explicit scale, which it would multiply; got "
                f"{multiplier} and {scale}. Remove one."
            )
        scale = multiplier * math.sqrt(1 + math.log(factor) / math.log(length))
    if scale is None:
        rope.note("attention_scale", "formula of longrope")
    return LongRoPE(
        short_factors=short, long_factors=long, original_length=length, factor=factor, attention_scale=scale
    )


def _entries(rope: Rope, key: str, pairs: int) -> tuple[Any, ...]:
    found = rope.own.find(key)
    if found is None:
        raise ValueError(f"`{rope.own.at(key)}` must be given, a list of {pairs} numbers; got none. Add it.")
    values, path = found
    if not isinstance(values, list | tuple):
        raise TypeError(f"`{path}` must be a list of {pairs} numbers; got {values!r}.")
    if len(values) != pairs:
        raise ValueError(
            f"`{path}` must have one number for each of {pairs} rotary pairs; got {len(values)}. "
            "Lists follow the rotary width, not the head's."
        )
    for index, value in enumerate(values):
        check_real(f"{path}[{index}]", value, "above 0", lambda v: v > 0)
    rope.note(f"{key}s", path)
    return tuple(values)


def _scale(rope: Rope) -> Any:
    """The explicit scale on cos and sin; Phi-3.5-MoE states one per list."""
    explicit = rope.number("attention_factor", "above 0", lambda v: v > 0, name="attention_scale")
    short, long = (
        rope.number(key, "above 0", lambda v: v > 0, name="attention_scale") for key in ("short_mscale", "long_mscale")
    )
    if short != long:
        raise ValueError(
            f"`{rope.own.at('short_mscale')}` and `long_mscale` must be equal, since one scale serves both lists; got "
            f"{short} and {long}. Build the ModelRope by hand."
        )
    return short if explicit is None else explicit


def _factor(rope: Rope, length: int) -> float:
    """The ratio of the two lengths; it feeds only the scale on cos and sin."""
    longest = rope.config.integer("max_position_embeddings")
    if longest is None:
        raise ValueError(
            f"`{rope.own.at('factor')}` must be given where there is no `max_position_embeddings`; got none. Add it."
        )
    rope.note("factor", f"{longest[1]} / original_max_position_embeddings")
    if longest[0] < length:
        rope.log.warn(
            f"`{longest[1]}` {longest[0]} is below the original length {length}: the attention scale is 1, as for "
            "factor 1."
        )
        return 1.0
    return longest[0] / length

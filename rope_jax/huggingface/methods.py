"""Names of rope types and the transforms they mean."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rope_jax.huggingface.grammar import Rope, check_real
from rope_jax.huggingface.heads import read_fraction
from rope_jax.scaling import (
    DynamicNTK,
    DynamicYaRN,
    FrequencyTransform,
    Identity,
    Llama3,
    NTKAware,
    PositionInterpolation,
    Proportional,
    Rescale,
    YaRN,
    chain,
)

# Keys that every type may have: base, width, streams and the query scale are read elsewhere, and lengths that a method
# does not use are no setting of it.
SHARED = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"),
    *("llama_4_scaling_beta", "max_position_embeddings", "original_max_position_embeddings"),
)


@dataclass(frozen=True)
class Method:
    """How a rope type is read."""

    build: Callable[[Rope, int], FrequencyTransform]
    keys: tuple[str, ...] = ()
    # The method spreads the fraction over the whole head instead of narrowing what turns.
    whole: bool = False


def original_length(rope: Rope) -> Any:
    """Tokens the model was trained on, as stated in the dict or at the top level."""
    inner, outer = (place.integer("original_max_position_embeddings") for place in (rope.own, rope.config))
    if inner is not None and outer is not None and inner[0] != outer[0]:
        # transformers takes the outer one where the model's class declares it, and the inner one elsewhere.
        rope.log.doubt(f"`{inner[1]}` and `{outer[1]}` must agree; got {inner[0]} and {outer[0]}. Remove one.")
    found = outer if inner is None else inner
    if found is None:
        longest = rope.config.integer("max_position_embeddings")
        rope.log.doubt(
            f"`{rope.own.at('original_max_position_embeddings')}` must be given: the length the model was trained on "
            f"before it was extended; got none. `max_position_embeddings` ({longest and longest[0]}) may be the "
            "extended length, and the frequencies differ. Add it."
        )
        if longest is None:
            raise ValueError("`max_position_embeddings` must be given where no original length is; got none. Add it.")
        found = longest
    rope.note("original_length", found[1])
    return found[0]


def _ratio(rope: Rope, length: int) -> float:
    """The factor of a file that states only the two lengths."""
    longest = rope.config.integer("max_position_embeddings")
    if longest is None:
        raise ValueError(f"`{rope.own.at('factor')}` must be given, a number at least 1; got none. Add it.")
    rope.note("factor", f"{longest[1]} / original_max_position_embeddings")
    return longest[0] / length


def _default(rope: Rope, pairs: int) -> FrequencyTransform:
    return Identity()


def _linear(rope: Rope, pairs: int) -> FrequencyTransform:
    return PositionInterpolation(factor=rope.factor())


def _dynamic(rope: Rope, pairs: int) -> FrequencyTransform:
    alpha = rope.number("alpha", "at least 1", lambda v: v >= 1)
    if alpha is not None:
        # Hunyuan: a fixed alpha under the name of the dynamic method, beside leftovers of others.
        unread = [key for key in ("factor", *YARN_KEYS) if key in rope.own.values and rope.own.values[key] is not None]
        if unread:
            rope.log.warn(f"{', '.join(unread)} are not read beside `{rope.own.at('alpha')}`.")
        return NTKAware(factor=alpha)
    factor = rope.factor()
    for key in YARN_KEYS:
        if rope.own.values.get(key) is not None:
            rope.log.doubt(f'`{rope.own.at(key)}` must belong to the rope type "dynamic"; it does not. Remove it.')
    longest = rope.config.integer("max_position_embeddings")
    inner = rope.own.integer("original_max_position_embeddings")
    if longest is None:
        raise ValueError(
            "`max_position_embeddings` must be given for dynamic NTK, which starts there; got none. Add it."
        )
    if inner is not None and inner[0] != longest[0]:
        # transformers starts at max_position_embeddings whatever else is stated.
        rope.log.doubt(f"`{inner[1]}` and `{longest[1]}` must agree for dynamic NTK; got {inner[0]} and {longest[0]}.")
    found = longest if inner is None else inner
    rope.note("original_length", found[1])
    return DynamicNTK(factor=factor, original_length=found[0])


def _yarn(rope: Rope, pairs: int) -> FrequencyTransform:
    factor = rope.factor(required=False)
    length = original_length(rope)
    if factor is None:
        factor = _ratio(rope, length)
        check_real("max_position_embeddings / original_max_position_embeddings", factor, "at least 1", lambda v: v >= 1)
    else:
        _compare_lengths(rope, factor, length)
    options = _yarn_options(rope)
    plain = YaRN(factor=factor, original_length=length, **options)
    return YaRN(factor=factor, original_length=length, **options, attention_scale=yarn_scale(rope, plain))


def _compare_lengths(rope: Rope, factor: float, length: int) -> None:
    longest = rope.config.integer("max_position_embeddings")
    if longest is not None and not any(math.isclose(longest[0], n, rel_tol=1e-6) for n in (length, factor * length)):
        # The explicit factor holds; the table size is often left as it was.
        rope.log.warn(
            f"`{longest[1]}` is {longest[0]}, neither the original length {length} nor factor x original length "
            f"{factor * length:g}; the factor {factor} is used."
        )


def _yarn_options(rope: Rope) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key in ("beta_fast", "beta_slow"):
        options[key] = rope.number(key, "above 0", lambda v: v > 0)
        if options[key] is None:
            rope.note(key, "default of yarn")
    for key in ("mscale", "mscale_all_dim"):
        options[key] = rope.number(key, "at least 0", lambda v: v >= 0)
    # transformers reads a nested group's `truncate` from the dict around it; the checkpoint states it inside.
    place = next((place for place in (rope.own, rope.outer) if place.flag("truncate") is not None), None)
    options["truncate"] = None if place is None else place.flag("truncate")
    rope.note("truncate", "default of yarn" if place is None else place.at("truncate"))
    extrapolation = rope.number("extrapolation_factor", "above 0", lambda v: v > 0)
    if extrapolation not in (None, 1):
        rope.log.doubt(
            f"`{rope.own.at('extrapolation_factor')}` must be 1; got {extrapolation}. It has no counterpart."
        )
    return {key: value for key, value in options.items() if value is not None}


def yarn_scale(rope: Rope, plain: Any) -> Any:
    """The explicit scale on cos and sin, or None where the formula gives it."""
    explicit = rope.number("attention_factor", "above 0", lambda v: v > 0, name="attention_scale")
    # Unlike `attention_factor`, which replaces the formula, this key multiplies it.
    multiplier = rope.number("attn_factor", "above 0", lambda v: v > 0, name="attention_scale")
    if explicit is not None and multiplier is not None:
        raise ValueError(
            f"`{rope.own.at('attn_factor')}` must not stand beside `attention_factor`: one multiplies the formula, the "
            f"other replaces it; got {multiplier} and {explicit}. Remove one."
        )
    if explicit is None and multiplier is None:
        rope.note("attention_scale", "formula of yarn")
        return None
    formula = formula_scale(plain)
    if explicit is not None:
        # A scale that only repeats what mscale gives leaves the formula in charge.
        deepseek = plain.mscale is not None or plain.mscale_all_dim is not None
        return None if deepseek and explicit == formula else explicit
    return multiplier * formula


def formula_scale(method: YaRN) -> float:
    """What YaRN's formula multiplies cos and sin by."""
    log = math.log(method.factor)
    if method.mscale is None and method.mscale_all_dim is None:
        return 0.1 * log + 1
    mscale = 1.0 if method.mscale is None else method.mscale
    return (0.1 * mscale * log + 1) / (0.1 * (method.mscale_all_dim or 0.0) * log + 1)


def deepseek_softmax_scale(method: YaRN) -> float:
    """`M(mscale_all_dim)^2`, `M(m) = 0.1 m ln factor + 1`: DeepSeek's factor on the logits of the whole head."""
    return (0.1 * (method.mscale_all_dim or 0.0) * math.log(method.factor) + 1) ** 2


def _dynamic_yarn(rope: Rope, pairs: int) -> FrequencyTransform:
    length = original_length(rope)
    factor = max(_ratio(rope, length), 1.0) if rope.own.flag("finetuned") else 1.0
    return DynamicYaRN(original_length=length, factor=factor, **_yarn_options(rope))


def _llama3(rope: Rope, pairs: int) -> FrequencyTransform:
    low = rope.number("low_freq_factor", "at least 0", lambda v: v >= 0, required=True)
    high = rope.number("high_freq_factor", "above 0", lambda v: v > 0, required=True)
    return Llama3(
        factor=rope.factor(), original_length=original_length(rope), low_freq_factor=low, high_freq_factor=high
    )


def _proportional(rope: Rope, pairs: int) -> FrequencyTransform:
    factor = rope.factor(required=False)
    kept = Proportional(fraction=read_fraction(rope))
    return kept if factor is None else chain(kept, PositionInterpolation(factor=factor))


def _ntk(rope: Rope, pairs: int) -> FrequencyTransform:
    """The later NTK forms: pair m of n, from 1 on, divided by `factor^(m / n)`, or `factor^((m / n)^mixed_b)`."""
    factor = rope.factor()
    power = rope.number("mixed_b", "above 0", lambda v: v > 0) or 1.0
    return Rescale(factors=tuple(factor ** ((m / pairs) ** power) for m in range(1, pairs + 1)))


YARN_KEYS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "extrapolation_factor")
_SCALES = ("attention_factor", "attn_factor")
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "default": Method(_default),
        "linear": Method(_linear, ("factor",)),
        "dynamic": Method(_dynamic, ("factor", "alpha", *YARN_KEYS)),
        "yarn": Method(_yarn, ("factor", "finetuned", *YARN_KEYS, *_SCALES)),
        "dynamic-yarn": Method(_dynamic_yarn, ("finetuned", *YARN_KEYS)),
        "llama3": Method(_llama3, ("factor", "low_freq_factor", "high_freq_factor")),
        "proportional": Method(_proportional, ("factor",), whole=True),
        "ntk": Method(_ntk, ("factor", "mixed_b")),
    }
)

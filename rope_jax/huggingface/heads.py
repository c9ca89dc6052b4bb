"""Widths, base, pairing and position streams of a head."""

import math
from collections.abc import Mapping
from typing import Any

from rope_jax.huggingface.grammar import Fields, Rope, check_real
from rope_jax.huggingface.layers import GLOBAL, LOCAL
from rope_jax.layout import Layout
from rope_jax.schedule import rotary_width


def read_theta(rope: Rope) -> float:
    """The base: from the dict, the top level, or the family."""
    found = _stated_theta(rope)
    ratio = rope.config.find("rope_ratio")
    if found is None and ratio is not None:
        check_real(ratio[1], ratio[0], "above 0", lambda v: v > 0)
        rope.note("theta", f"10000 x {ratio[1]}")
        return 10_000.0 * ratio[0]
    if found is not None:
        check_real(found[1], found[0], "above 1", lambda v: v > 1)
        rope.note("theta", found[1])
        return float(found[0])
    own = rope.family.local_theta if rope.group == LOCAL else None
    default = rope.family.theta if own is None else own
    if default is None:
        rope.log.doubt(
            f"`rope_theta` must be given for the model type {rope.model!r}, whose default base is not known; got none. "
            "Add it to the configuration."
        )
        rope.note("theta", "assumed, RoFormer's")
        return 10_000.0
    rope.note("theta", f"default of {rope.model}")
    return default


def _stated_theta(rope: Rope) -> tuple[Any, str] | None:
    if rope.group == LOCAL:
        local = rope.own.find("rope_theta") or rope.config.find("local_rope_theta")
        if local is not None or rope.family.local_theta is not None:
            return local
    return rope.widest("rope_theta")


def read_widths(rope: Rope, *, whole: bool) -> tuple[int, int]:
    """(rotary_dim, head_dim); `whole` where the method itself uses the fraction.

    The rotated channels of multi-head latent attention are a tensor of their own, so there both are its width.
    """
    latent = rope.config.integer("qk_rope_head_dim")
    fraction, path = _fraction(rope)
    if latent is not None:
        _check_latent(rope, latent[0], fraction, path)
        rope.note("rotary_dim", latent[1])
        rope.note("head_dim", latent[1])
        return latent[0], latent[0]
    head_dim = _head_dim(rope)
    if whole:
        return head_dim, head_dim
    absolute = rope.config.integer("rotary_dim")
    if absolute is not None:
        rope.note("rotary_dim", absolute[1])
        return absolute[0], head_dim
    if fraction != 1 or path != "":
        rope.note("partial_rotary_factor", path or f"default of {rope.model}")
    try:
        return rotary_width(head_dim, float(fraction)), head_dim
    except ValueError as error:
        raise ValueError(
            f"`{path or 'head_dim'}` must give whole rotary pairs; got {fraction} of {head_dim} channels. {error}"
        ) from error


def read_fraction(rope: Rope) -> float:
    """The share of turning pairs, for the method that uses it itself."""
    fraction, path = _fraction(rope)
    rope.note("fraction", path or f"default of {rope.model}")
    return float(fraction)


def _fraction(rope: Rope) -> tuple[Any, str]:
    found = rope.widest("partial_rotary_factor")
    if found is None:
        return rope.family.fraction, ""
    check_real(found[1], found[0], "above 0 and at most 1", lambda v: 0 < v <= 1)
    return found


def _check_latent(rope: Rope, width: int, fraction: Any, path: str) -> None:
    """A width that is already reduced must not be reduced again; a fraction beside it has to say the same."""
    nope, head = rope.config.integer("qk_nope_head_dim", least=0), rope.config.integer("head_dim")
    wholes = [width, *([width + nope[0]] if nope else []), *([head[0]] if head else [])]
    if not any(math.isclose(fraction * whole, width, rel_tol=1e-6) for whole in wholes):
        raise ValueError(
            f"`{path}` must agree with `qk_rope_head_dim` {width}, which is the rotary width; got {fraction}. "
            "Remove it."
        )


def _head_dim(rope: Rope) -> int:
    wide = rope.config.integer("global_head_dim") if rope.group == GLOBAL else None
    default = rope.family.global_head_dim if rope.group == GLOBAL else None
    found = _own_head_dim(rope) or wide
    if found is None and default is None:
        found, default = rope.config.integer("head_dim"), rope.family.head_dim
    if found is not None:
        rope.note("head_dim", found[1])
        return found[0]
    if default is not None:
        rope.note("head_dim", f"default of {rope.model}")
        return default
    hidden, heads = (rope.config.required_integer(key) for key in ("hidden_size", "num_attention_heads"))
    if hidden % heads:
        raise ValueError(
            f"`hidden_size` must be a multiple of `num_attention_heads` where there is no `head_dim`; got {hidden} and "
            f"{heads}. Add head_dim."
        )
    rope.note("head_dim", "hidden_size / num_attention_heads")
    return hidden // heads


def _own_head_dim(rope: Rope) -> tuple[int, str] | None:
    """The width that the file states layer by layer, which must be one for the group."""
    found = rope.config.find("per_layer_config")
    if found is None or not isinstance(found[0], Mapping):
        return None
    wrong = [
        layer for layer, values in found[0].items() if not (str(layer).isdecimal() and isinstance(values, Mapping))
    ]
    if wrong:
        raise ValueError(f"`{found[1]}` must map layer numbers to objects; got {wrong[0]!r}. Correct that entry.")
    overrides = {int(layer): Fields(values, f"{found[1]}.{layer}") for layer, values in found[0].items()}
    widths = [overrides[layer].integer("head_dim") if layer in overrides else None for layer in rope.members]
    if len({width and width[0] for width in widths}) > 1:
        raise ValueError(
            f"`{found[1]}` must give the layers that turn alike heads of one width; got {widths} for {rope.group}. "
            "Name their layer types apart."
        )
    return widths[0]


def read_layout(rope: Rope) -> Layout:
    """Which channels pair in the stored weights."""
    for key in ("rope_interleave", "rotary_emb_interleaved"):
        flag = rope.config.flag(key)
        if flag is not None:
            rope.note("layout", key)
            return "interleaved" if flag else "half"
    kind = rope.config.find("position_embedding_type")
    if kind is not None and kind[0] == "rope_gptj":
        rope.note("layout", kind[1])
        return "interleaved"
    if rope.family.models:
        rope.note("layout", f"default of {rope.model}")
        return rope.family.layout
    if rope.config.find("qk_rope_head_dim") is not None:
        rope.log.doubt(
            f"`rope_interleave` must be given for the model type {rope.model!r} with latent attention, whose pairing "
            "is not known; got none. Add true (pairs 2i, 2i+1, as DeepSeek stores them) or false."
        )
    rope.note("layout", "assumed: half, as most checkpoints have it")
    return "half"


def read_axes(rope: Rope, pairs: int) -> tuple[int, ...] | None:
    """The position stream of each pair (m-RoPE); None where there is one stream."""
    found = rope.own.find("mrope_section")
    if found is None:
        return None
    section, path = found
    whole = isinstance(section, list | tuple) and all(isinstance(n, int) and n >= 0 for n in section)
    if not whole or sum(section) != pairs:
        raise ValueError(f"`{path}` must be counts of pairs that add up to {pairs}; got {section!r}.")
    rope.note("pair_axes", path)
    flag = rope.own.flag("mrope_interleaved")
    return pair_axes(section, rope.family.mrope_interleaved if flag is None else flag)


def pair_axes(section: Any, interleaved: bool) -> tuple[int, ...]:
    """Streams in blocks, or dealt out in turn: pair i goes to stream i mod n while that one has pairs left, else to 0.

    Example:
      >>> pair_axes((2, 1, 1), interleaved=True)
      (0, 1, 2, 0)
    """
    if not interleaved:
        return tuple(axis for axis, count in enumerate(section) for _ in range(count))
    axes, streams = [0] * sum(section), len(section)
    for axis in range(1, streams):
        for pair in range(axis, min(streams * section[axis], len(axes)), streams):
            axes[pair] = axis
    return tuple(axes)

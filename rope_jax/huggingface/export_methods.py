"""Transforms as rope types."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from rope_jax.huggingface.methods import deepseek_softmax_scale, formula_scale
from rope_jax.scaling import (
    BaseChange,
    DynamicNTK,
    FrequencyTransform,
    Identity,
    Llama3,
    LongRoPE,
    PositionInterpolation,
    Proportional,
    YaRN,
)
from rope_jax.scaling.base import Chain
from rope_jax.schedule import geometric_schedule
from rope_jax.spec import RopeSpec


@dataclass(frozen=True)
class Exported:
    """A transform in the file's words."""

    rope_type: str
    theta: float
    fields: dict[str, Any] = field(default_factory=dict)
    # What transformers reads from the top level.
    beside: dict[str, Any] = field(default_factory=dict)


def export_method(spec: RopeSpec) -> Exported:
    """The rope type of a spec's transform, or its schedule as LongRoPE lists."""
    transform = spec.transform
    allowed = deepseek_softmax_scale(transform) if isinstance(transform, YaRN) else 1.0
    if not any(math.isclose(spec.softmax_scale, scale, rel_tol=1e-6) for scale in (1.0, allowed)):
        raise ValueError(
            f"`softmax_scale` must be 1, or what `mscale_all_dim` of YaRN gives; got {spec.softmax_scale}. "
            "Configurations have no field for it."
        )
    write = WRITERS.get(type(transform))
    exported = write(spec) if write is not None else None
    exported = _lists(spec) if exported is None else exported
    return replace(exported, fields={key: _json(value) for key, value in exported.fields.items()})


def _json(value: Any) -> Any:
    """Arrays and tuples as lists, array scalars as numbers: parameters may have been searched for or learned."""
    if isinstance(value, list | tuple):
        return [_json(entry) for entry in value]
    return value.tolist() if isinstance(value, jax.Array | np.ndarray | np.generic) else value


def _identity(spec: RopeSpec) -> Exported:
    return Exported("default", spec.theta)


def _base_change(spec: RopeSpec) -> Exported:
    return Exported("default", float(spec.transform.theta))  # type: ignore[attr-defined]


def _linear(spec: RopeSpec) -> Exported:
    return Exported("linear", spec.theta, {"factor": spec.transform.factor})  # type: ignore[attr-defined]


def _dynamic(spec: RopeSpec) -> Exported:
    method = spec.transform
    assert isinstance(method, DynamicNTK)
    return Exported(
        "dynamic", spec.theta, {"factor": method.factor}, {"max_position_embeddings": method.original_length}
    )


def _yarn(spec: RopeSpec) -> Exported | None:
    method = spec.transform
    assert isinstance(method, YaRN)
    if method.ramp != "index":
        return None
    fields = _present(method, ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"))
    fields["original_max_position_embeddings"] = method.original_length
    if not method.truncate:
        fields["truncate"] = False
    scale = method.attention_scale
    stated = method.mscale is not None or method.mscale_all_dim is not None
    if scale is None and stated and not (method.mscale and method.mscale_all_dim):
        # transformers ignores both where one of them is missing or 0: the result is stated as well.
        scale = formula_scale(method)
    if scale is not None:
        fields["attention_factor"] = scale
    return Exported("yarn", spec.theta, fields)


def _llama3(spec: RopeSpec) -> Exported:
    fields = _present(spec.transform, ("factor", "low_freq_factor", "high_freq_factor"))
    length = spec.transform.original_length  # type: ignore[attr-defined]
    return Exported("llama3", spec.theta, {**fields, "original_max_position_embeddings": length})


def _longrope(spec: RopeSpec) -> Exported:
    method = spec.transform
    assert isinstance(method, LongRoPE)
    fields = {
        "short_factor": method.short_factors,
        "long_factor": method.long_factors,
        "factor": method.factor,
        "original_max_position_embeddings": method.original_length,
    }
    if method.attention_scale is not None:
        fields["attention_factor"] = method.attention_scale
    return Exported("longrope", spec.theta, fields)


def _proportional(spec: RopeSpec) -> Exported | None:
    match spec.transform:
        case Proportional(fraction=fraction):
            fields = {"partial_rotary_factor": fraction}
        case Chain(transforms=(Proportional(fraction=fraction), PositionInterpolation(factor=factor))):
            fields = {"partial_rotary_factor": fraction, "factor": factor}
        case _:
            return None
    if spec.rotary_dim != spec.head_dim:
        raise ValueError(
            "`rotary_dim` must be the head's width for Proportional, whose pairs lie across it; got "
            f"{spec.rotary_dim} of {spec.head_dim}."
        )
    return Exported("proportional", spec.theta, fields)


def _present(method: FrequencyTransform, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(method, name)) is not None}


def _lists(spec: RopeSpec) -> Exported:
    """Any static schedule: the plain frequencies divided by it, for short and long contexts alike."""
    if spec.needs_length:
        raise ValueError(
            f"`transform` must be static or have a rope type; got {spec.transform!r}, whose frequencies depend on the "
            "length. Export it at one length, for example as YaRN(factor=length / original_length, ...)."
        )
    schedule = spec.schedule()
    inv_freq = schedule.float64()
    still = np.flatnonzero(inv_freq == 0)
    if still.size:
        raise ValueError(
            f"`transform` must leave every pair turning to be written as ratios; got a frequency of 0 at pair "
            f"{still[0]} ({still.size} of {inv_freq.size} stand still) from {spec.transform!r}. No rope type states it."
        )
    ratios = (geometric_schedule(spec.rotary_dim, theta=spec.theta).float64() / inv_freq).tolist()
    scale = float(schedule.attention_scale)
    return Exported(
        "longrope", spec.theta, {"short_factor": ratios, "long_factor": list(ratios), "attention_factor": scale}
    )


WRITERS: Mapping[type, Callable[[RopeSpec], Exported | None]] = MappingProxyType(
    {
        Identity: _identity,
        BaseChange: _base_change,
        PositionInterpolation: _linear,
        DynamicNTK: _dynamic,
        YaRN: _yarn,
        Llama3: _llama3,
        LongRoPE: _longrope,
        Proportional: _proportional,
        Chain: _proportional,
    }
)

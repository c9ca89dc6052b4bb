"""A method on top of what a checkpoint has, and the frequencies of one length."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rope_jax.huggingface.grammar import Fields
from rope_jax.huggingface.layers import GLOBAL
from rope_jax.scaling import AttentionTemperature, Drop, FrequencyTransform, Rescale, YaRN, chain
from rope_jax.scaling.base import Chain
from rope_jax.schedule import geometric_schedule
from rope_jax.spec import ModelRope, RopeSpec

ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class Geometric:
    """A schedule with a base: `inv_freq_i = theta^(-i / pairs) / factor`, and a scale on cos and sin."""

    theta: float
    factor: float
    scale: float


def edited_groups(rope: ModelRope) -> tuple[str, ...]:
    """The groups that a method extends: the full-attention layers where they turn, else all that turn.

    Layers with a sliding window never see the far positions that a method is for.
    """
    turning = tuple(name for name, spec in rope.specs.items() if spec is not None and spec.transform != Drop())
    if not turning:
        raise ValueError("`method` must have layers to edit; got a model in which no layer rotates.")
    return (GLOBAL,) if GLOBAL in turning and len(turning) > 1 else turning


def compose(rope: ModelRope, transform: FrequencyTransform) -> ModelRope:
    """The settings with a method applied after each edited group's own.

    Raises:
      ValueError: the method cannot follow what is there (YaRN on a spectrum that YaRN has bent).
    """
    edited = edited_groups(rope)
    specs = {
        name: replace(spec, transform=chain(spec.transform, transform)) if spec is not None and name in edited else spec
        for name, spec in rope.specs.items()
    }
    composed = ModelRope(specs, rope.layer_groups, rope.sources, rope.warnings)
    composed.schedules(1 if composed.needs_length else None)
    return composed


def trained_length(config: Mapping[str, Any]) -> int | None:
    """Tokens that a checkpoint was trained on: the original length of its rope settings, else its longest position.

    Raises:
      ValueError: two original lengths are stated.
    """
    dicts = [value for name in ("rope_parameters", "rope_scaling") if isinstance(value := config.get(name), Mapping)]
    dicts += [value for outer in dicts for value in outer.values() if isinstance(value, Mapping)]
    found = [length for place in (*dicts, config) if (length := Fields(place).integer(ORIGINAL))]
    if len({length for length, _ in found}) > 1:
        raise ValueError(
            f"`{ORIGINAL}` must be one length; got {sorted({length for length, _ in found})}. Write original_length "
            "into the method."
        )
    longest = found[0] if found else Fields(config).integer("max_position_embeddings")
    return None if longest is None else longest[0]


def target_length(rope: ModelRope, config: Mapping[str, Any], asked: int | None, factor: float | None) -> int:
    """Tokens that a server should take.

    Args:
      rope: the settings to run.
      config: the raw configuration, which says what the checkpoint is for.
      asked: the length that was asked for; it holds.
      factor: what a method stretches the trained length by.

    Raises:
      ValueError: nothing states a length.
    """
    trained, longest = trained_length(config), Fields(config).integer("max_position_embeddings")
    reached = [length for length in (trained, longest and longest[0]) if length]
    if trained is not None and factor is not None:
        reached.append(int(trained * factor))
    # Files with YaRN often keep the trained length as their longest position.
    yarns = [part for spec in rope.specs.values() if spec for part in parts_of(spec) if isinstance(part, YaRN)]
    reached += [int(yarn.factor * yarn.original_length) for yarn in yarns]
    if asked is None and not reached:
        raise ValueError("`--length` must be given where `max_position_embeddings` is not; got none. Add it.")
    return max(reached) if asked is None else asked


def parts_of(spec: RopeSpec) -> tuple[FrequencyTransform, ...]:
    """The methods of a spec, in the order in which they apply."""
    return spec.transform.transforms if isinstance(spec.transform, Chain) else (spec.transform,)


def fix_length(
    rope: ModelRope, length: int | None, *, runtime: str, strict: bool = True
) -> tuple[ModelRope, tuple[str, ...]]:
    """Settings whose schedule no longer asks for a length, for runtimes that build their tables once.

    Args:
      length: tokens whose frequencies are kept; None where no length was asked for.
      runtime: named in messages.
      strict: refuse where sequences of other lengths up to `length` would turn otherwise.

    Returns:
      The settings, and remarks on what changed.
    """
    specs, remarks = dict(rope.specs), []
    for group, spec in rope.specs.items():
        if spec is None or not spec.needs_length:
            continue
        loss = (
            f"{runtime} builds its frequencies once, when it starts, so their dependence on the length of the sequence "
            "would be lost"
        )
        if length is None:
            raise ValueError(
                f"`method` must be static; got {type(spec.transform).__name__}: {loss}. Give --length, and --no-strict "
                "to keep the frequencies of that length for sequences of every length."
            )
        alike = _same(spec, 1, length)
        if not alike and strict:
            raise ValueError(
                f"`method` must be static; got {type(spec.transform).__name__}: {loss}. --no-strict keeps the "
                f"frequencies of {length} tokens for sequences of every length; a --length up to the trained one "
                "loses nothing."
            )
        specs[group] = as_static(spec, length)
        seen = "which are the same at every length up to it" if alike else "for sequences of every length"
        remarks.append(f"{group}: the frequencies of {length} tokens, {seen}")
    return ModelRope(specs, rope.layer_groups, rope.sources, rope.warnings), tuple(remarks)


def _same(spec: RopeSpec, short: int, long: int) -> bool:
    one, other = spec.schedule(short), spec.schedule(long)
    return bool(np.array_equal(one.float64(), other.float64())) and bool(one.attention_scale == other.attention_scale)


def as_static(spec: RopeSpec, length: int | None = None) -> RopeSpec:
    """The same schedule as one divisor for each pair and a scale.

    Raises:
      ValueError: a pair that stands still, which no divisor gives.
    """
    schedule = spec.schedule(length)
    inv_freq, scale = schedule.float64(), float(schedule.attention_scale)
    still = np.flatnonzero(inv_freq == 0)
    if still.size:
        raise ValueError(
            "`method` must leave every pair turning to be written as divisors; got a frequency of 0 at pair "
            f"{still[0]} ({still.size} of {inv_freq.size} stand still) from {spec.transform!r}, which would be lost."
        )
    plain = geometric_schedule(spec.rotary_dim, theta=spec.theta).float64()
    kept = Rescale(factors=tuple((plain / inv_freq).tolist()))
    return replace(spec, transform=kept if scale == 1 else chain(kept, AttentionTemperature(scale=scale)))


def geometric(spec: RopeSpec) -> Geometric | None:
    """The base and the factor of a static schedule that has them, within 1e-9; None otherwise."""
    schedule = spec.schedule()
    inv_freq, scale = schedule.float64(), float(schedule.attention_scale)
    if inv_freq.size < 2 or not np.all(inv_freq > 0):
        return None
    pairs = inv_freq.size
    theta = float((inv_freq[0] / inv_freq[-1]) ** (pairs / (pairs - 1)))
    factor = float(1 / inv_freq[0])
    # What was computed from the base that stands there keeps it to the last digit.
    theta = spec.theta if np.isclose(theta, spec.theta, rtol=1e-9, atol=0) else theta
    factor = round(factor, 9) if np.isclose(factor, round(factor, 9), rtol=1e-12, atol=0) else factor
    if theta <= 1 or not np.allclose(theta ** (-np.arange(pairs) / pairs) / factor, inv_freq, rtol=1e-9, atol=0):
        return None
    return Geometric(theta, factor, scale)

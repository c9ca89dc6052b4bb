"""Rotary settings as the metadata of GGUF files of the architecture "llama", both ways.

What llama.cpp does with each key, with `s` the factor and `a` the attention factor:

    rope.freq_base                theta (10000 where absent)
    rope.dimension_count          the width that turns; the architecture "llama" requires the whole head
    rope.scaling.type             "none" ignores the factor; "linear" is meant where the key is absent
    rope.scaling.factor           s; 0 and absence mean 1; `rope.scale_linear` is its older name
    rope.scaling.attn_factor      a, multiplies cos and sin under every type (1 where absent)
    rope.scaling.original_context_length   read by yarn and longrope; the context length where absent
    rope.scaling.finetuned        read by nothing
    rope_freqs.weight             a tensor that divides each pair's frequency, beside the factor (Llama 3.1)
    rope_factors_short.weight, rope_factors_long.weight   the same under "longrope", one chosen by the length

    none, linear    inv_freq_i / (s rope_freqs_i)
    yarn            the index ramp with rounding, of 32 and 1 turns, and (0.1 ln s + 1) a on cos and sin
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rope_jax.huggingface.grammar import check_real
from rope_jax.scaling import Llama3, YaRN
from rope_jax.schedule import geometric_schedule
from rope_jax.spec import ModelRope, RopeSpec

Json = dict[str, Any]
FREQS, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
PREFIX = "llama.rope."
# Other architectures read these; files of "llama" state them at best with the value that changes nothing.
NEUTRAL = (("scaling.yarn_ext_factor", 1.0), ("scaling.yarn_attn_factor", 1.0), ("scaling.yarn_log_multiplier", 0.0))
BETAS = (("scaling.yarn_beta_fast", "beta_fast"), ("scaling.yarn_beta_slow", "beta_slow"))
READ = (
    *("freq_base", "dimension_count", "scale_linear", "scaling.type", "scaling.factor", "scaling.attn_factor"),
    *("scaling.original_context_length", "scaling.finetuned"),
)
NUMBERS = ("freq_base", "scale_linear", "scaling.factor", "scaling.attn_factor")
# Divides the frequency of a pair that stands still: no position turns it by an angle that float32 can tell from 0.
STILL = 1e30


def rope_parameters(metadata: Mapping[str, Any], factors: Mapping[str, Sequence[float]], *, head_dim: int) -> Json:
    """The `rope_parameters` of a Hugging Face configuration that turn as llama.cpp does.

    Args:
      metadata: keys and values of the file, `llama.context_length` among them.
      factors: the tensors of divisors that the file holds, by name.
      head_dim: channels of a head.

    Raises:
      TypeError: a setting that is no number.
      ValueError: a key or value whose effect on the rotation is not known; tensors that the type does not read.
    """
    rope = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    kind = rope.get("scaling.type", "linear")
    _refuse_unknown(rope, kind)
    if rope.get("dimension_count", head_dim) != head_dim:
        raise ValueError(
            f"`{PREFIX}dimension_count` must be the width of a head, {head_dim}, as llama.cpp requires of this "
            f"architecture; got {rope['dimension_count']}."
        )
    shared: Json = {"rope_theta": rope.get("freq_base", 10_000.0)}
    if "scaling.original_context_length" in rope:
        shared["original_max_position_embeddings"] = rope["scaling.original_context_length"]
    # With YaRN the divisors would move the ramp's result; no file is known that has both.
    expected = {"longrope": {SHORT, LONG}, "yarn": set()}.get(kind, {FREQS} & set(factors))
    if set(factors) != expected:
        raise ValueError(
            f'`{PREFIX}scaling.type` "{kind}" must go with the tensors {sorted(expected)}; got {sorted(factors)}.'
        )
    factor = rope.get("scaling.factor", rope.get("scale_linear", 0.0)) or 1.0
    scale = rope.get("scaling.attn_factor", 1.0)
    if kind == "yarn":
        return _read_yarn(rope, shared, factor, scale, metadata["llama.context_length"])
    if kind == "longrope":
        return _read_longrope(shared, factors, factor, scale, metadata["llama.context_length"])
    factor = 1.0 if kind == "none" else factor
    return _read_static(shared, list(factors.get(FREQS, ())), factor, scale, head_dim)


def _refuse_unknown(rope: Json, kind: Any) -> None:
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise ValueError(f"`{PREFIX}scaling.type` must be none, linear, yarn or longrope; got {kind!r}.")
    betas = [key for key, _ in BETAS if kind == "yarn"]
    unknown = sorted(set(rope) - {*READ, *betas, *(key for key, _ in NEUTRAL)})
    if unknown:
        raise ValueError(
            f"`{PREFIX}{unknown[0]}` must be a rope setting that is read for the scaling type {kind!r}; got "
            f"{rope[unknown[0]]!r}, whose effect on the rotation is not known."
        )
    for key in sorted(set(rope) & {*NUMBERS, *betas, *(key for key, _ in NEUTRAL)}):
        check_real(f"{PREFIX}{key}", rope[key], "finite", lambda _: True)
    for key, neutral in NEUTRAL:
        # A negative number means unset there.
        if rope.get(key, neutral) != neutral and not (neutral and rope[key] < 0):
            raise ValueError(f"`{PREFIX}{key}` must be {neutral:g} in files of this architecture; got {rope[key]}.")


def _read_yarn(rope: Json, shared: Json, factor: float, scale: float, context_length: int) -> Json:
    fields: Json = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context_length} | shared
    # llama.cpp reads the two for other architectures only; whoever wrote them into the file meant them.
    fields |= {name: rope[key] for key, name in BETAS if key in rope}
    if scale != 1:
        fields["attention_factor"] = (0.1 * math.log(factor) + 1) * scale
    return fields


def _read_longrope(
    shared: Json, factors: Mapping[str, Sequence[float]], factor: float, scale: float, context_length: int
) -> Json:
    if factor != 1:
        raise ValueError(f'`{PREFIX}scaling.factor` must be absent beside the type "longrope"; got {factor}.')
    lists = {"short_factor": list(factors[SHORT]), "long_factor": list(factors[LONG])}
    length = {"original_max_position_embeddings": context_length}
    # No formula gives the scale: what the file does not state is 1.
    return {"rope_type": "longrope", **lists, "attention_factor": scale} | length | shared


def _read_static(shared: Json, divisors: list[float], factor: float, scale: float, head_dim: int) -> Json:
    if not divisors and scale == 1:
        return {"rope_type": "default"} | shared if factor == 1 else {"rope_type": "linear", "factor": factor} | shared
    if divisors and scale == 1 and factor == 1:
        named = _as_llama3(divisors, shared, head_dim)
        if named is not None:
            return named
    ratios = [factor * divisor for divisor in divisors or [1.0] * (head_dim // 2)]
    lists = {"short_factor": ratios, "long_factor": list(ratios)}
    return {"rope_type": "longrope", **lists, "attention_factor": scale} | shared


def _as_llama3(divisors: list[float], shared: Json, head_dim: int) -> Json | None:
    """The dict of Llama 3.1 that the divisors were made from, or None.

    Its numbers are not in the file; where the published ones give these divisors, to the rounding of the single
    precision they were computed in, they are what was meant.
    """
    factor, length = max(divisors), shared.get("original_max_position_embeddings", 8192)
    if not (min(divisors) == 1 and factor > 1 and math.isfinite(factor)):
        return None
    plain = geometric_schedule(head_dim, theta=shared["rope_theta"])
    published = Llama3(factor=factor, original_length=length, low_freq_factor=1.0, high_freq_factor=4.0)
    if len(divisors) != plain.pairs or not np.allclose(
        plain.float64() / published(plain).float64(), divisors, rtol=1e-5, atol=0
    ):
        return None
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {"rope_type": "llama3", "factor": factor, **bounds, "original_max_position_embeddings": length} | shared


def rope_metadata(rope: ModelRope) -> Json:
    """The keys and the tensor from which llama.cpp builds the same frequencies and the same scale on cos and sin.

    Plain, any other base, position interpolation and YaRN (rounded index ramp of 32 and 1 turns) have keys of their
    own; any other static schedule is the plain one divided, pair by pair, by the tensor `rope_freqs.weight`.

    Args:
      rope: the settings of a model whose layers all turn alike.

    Returns:
      A new dict: keys with their values, and under "rope_freqs.weight", where it is needed, a list [pairs].

    Raises:
      ValueError: what the file cannot state: layers that differ or do not turn, part of a head, frequencies that
        depend on the length, position streams, scales on the logits.

    Example:
      >>> rope_metadata(ModelRope({"all": RopeSpec(64, theta=5e5)}, ("all",) * 2))
      {'llama.rope.dimension_count': 64, 'llama.rope.freq_base': 500000.0}
    """
    stated = []
    for group, spec in rope.specs.items():
        if spec is None:
            raise ValueError(
                f"`rope` must turn every layer; got no rotation in the layers {group!r}. GGUF has no key for them."
            )
        _refuse_unstated(spec)
        stated.append(_metadata(spec))
    if any(other != stated[0] for other in stated):
        raise ValueError(
            f"`rope` must turn all layers alike; got groups {sorted(rope.specs)} that differ. GGUF has one schedule."
        )
    return stated[0]


def _refuse_unstated(spec: RopeSpec) -> None:
    if spec.rotary_dim != spec.head_dim:
        raise ValueError(
            f"`rotary_dim` must be the head's width {spec.head_dim}, as llama.cpp requires of this architecture; got "
            f"{spec.rotary_dim}."
        )
    if spec.needs_length:
        raise ValueError(
            f"`transform` must be static; got {spec.transform!r}: llama.cpp fixes the frequencies when it starts, so "
            "their dependence on the length would be lost. Export it at one length, for example as YaRN."
        )
    for name, value, neutral in (
        ("softmax_scale", spec.softmax_scale, 1.0),
        ("query_scale", spec.query_scale, None),
        ("pair_axes", spec.pair_axes, None),
    ):
        if value != neutral:
            raise ValueError(f"`{name}` must be {neutral}; got {value!r}, which GGUF has no key for: it would be lost.")


def _metadata(spec: RopeSpec) -> Json:
    schedule = spec.schedule()
    inv_freq, scale = schedule.float64(), float(schedule.attention_scale)
    length = getattr(spec.transform, "original_length", None)
    written: Json = {f"{PREFIX}dimension_count": spec.rotary_dim, f"{PREFIX}freq_base": float(spec.theta)}
    if length is not None:
        written[f"{PREFIX}scaling.original_context_length"] = int(length)
    if _named_yarn(spec):
        factor = float(spec.transform.factor)  # type: ignore[attr-defined]
        written |= {f"{PREFIX}scaling.type": "yarn", f"{PREFIX}scaling.factor": factor}
        scale /= 0.1 * math.log(factor) + 1
    else:
        written |= _static(spec, inv_freq)
    if not math.isclose(scale, 1, rel_tol=1e-6):
        written[f"{PREFIX}scaling.attn_factor"] = scale
    return written


def _named_yarn(spec: RopeSpec) -> bool:
    """Whether llama.cpp's ramp is this one: it has no switch for rounding, and reads no turns."""
    yarn = spec.transform
    rounded = isinstance(yarn, YaRN) and yarn.ramp == "index" and yarn.truncate
    return rounded and (yarn.beta_fast, yarn.beta_slow) == (32, 1) and yarn.factor > 1  # type: ignore[attr-defined]


def _static(spec: RopeSpec, inv_freq: np.ndarray) -> Json:
    """Another base, one factor, or a divisor for each pair."""
    pairs = inv_freq.size
    if pairs > 1 and inv_freq[0] == 1 and 0 < inv_freq[1] < 1:
        base = float(inv_freq[1] ** -pairs)
        if np.allclose(geometric_schedule(spec.rotary_dim, theta=base).float64(), inv_freq, rtol=1e-9, atol=0):
            return {} if math.isclose(base, spec.theta, rel_tol=1e-7) else {f"{PREFIX}freq_base": base}
    plain = geometric_schedule(spec.rotary_dim, theta=spec.theta).float64()
    divisors = np.where(inv_freq == 0, STILL, plain / np.where(inv_freq == 0, 1, inv_freq))
    if divisors[0] >= 1 and np.allclose(divisors, divisors[0], rtol=1e-9, atol=0):
        if divisors[0] == 1:
            return {}
        return {f"{PREFIX}scaling.type": "linear", f"{PREFIX}scaling.factor": float(divisors[0])}
    return {FREQS: divisors.tolist()}

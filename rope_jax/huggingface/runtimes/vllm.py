"""The command that makes vLLM turn as a ModelRope says."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rope_jax.huggingface.export import to_huggingface
from rope_jax.huggingface.families import family_of
from rope_jax.huggingface.methods import deepseek_softmax_scale
from rope_jax.huggingface.runtimes.composition import as_static, geometric, parts_of
from rope_jax.huggingface.runtimes.facts import VLLM, VLLM_BY_TRANSFORMERS, VLLM_KEYS, VLLM_LATENT, VLLM_PER_LAYER
from rope_jax.huggingface.runtimes.transformers import transformers_fields
from rope_jax.scaling import Proportional, YaRN
from rope_jax.spec import ModelRope, RopeSpec

Json = dict[str, Any]
_BESIDE = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")


@dataclass(frozen=True)
class Command:
    """Words for a POSIX shell, and what to know about them."""

    words: tuple[str, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The command, quoted."""
        return shlex.join(self.words)


def vllm_command(
    rope: ModelRope,
    config: Mapping[str, Any],
    *,
    model: str,
    length: int,
    trained_length: int | None,
    wrapper: str | None = None,
    dtype: str | None = None,
) -> Command:
    """`vllm serve MODEL --hf-overrides '{...}' --max-model-len N`.

    Args:
      rope: static settings.
      config: the raw configuration of the language model, which the overrides change.
      model: folder or hub id to serve.
      length: tokens of the longest sequence.
      trained_length: tokens that the checkpoint was trained on, None where that is not known.
      wrapper: the key under which a composite configuration holds the language model's.
      dtype: passed on.

    Raises:
      ValueError: settings of which vLLM drops something, naming it and the cure.
    """
    kind = str(config.get("model_type"))
    trained = length if trained_length is None else trained_length
    for spec in rope.specs.values():
        if spec is not None:
            _check(spec, kind)
    turning = {group: spec for group, spec in rope.specs.items() if spec is not None}
    if kind in VLLM_BY_TRANSFORMERS:
        parameters: Any = _by_transformers(rope, config, trained)
    else:
        entries = {group: _entry(spec, kind, trained) for group, spec in turning.items()}
        parameters = _gathered(entries, kind)
    dicts = _entries(parameters)
    if kind not in VLLM_BY_TRANSFORMERS:
        for entry in dicts:
            _check_table(entry, length)
    overrides: Json = {"rope_parameters": parameters}
    needed = _positions(dicts, kind, length)
    if int(config.get("max_position_embeddings") or 0) < needed:
        overrides["max_position_embeddings"] = needed
    if wrapper is not None:
        overrides = {wrapper: overrides}
    words = ["vllm", "serve", model, "--hf-overrides", json.dumps(overrides), "--max-model-len", str(length)]
    words += ["--dtype", dtype] if dtype else []
    return Command(tuple(words), overrides, _remarks(kind))


def _remarks(kind: str) -> tuple[str, ...]:
    lines = [f"checked against {VLLM}"]
    if kind in VLLM_BY_TRANSFORMERS:
        lines.append(f"vLLM runs the model type {kind} by transformers, which builds the frequencies")
    elif not family_of(kind).models:
        lines.append(f"of the model type {kind} it is not known whether its implementation hands the whole dict on")
    return tuple(lines)


def _check(spec: RopeSpec, kind: str) -> None:
    """What no rope dict of vLLM carries."""
    yarn = spec.transform
    applied = deepseek_softmax_scale(yarn) if kind in VLLM_LATENT and isinstance(yarn, YaRN) else 1.0
    if not math.isclose(spec.softmax_scale, applied, rel_tol=1e-6):
        raise ValueError(
            f"`softmax_scale` must be {applied:g}, which is what {VLLM} applies for the model type {kind!r}; got "
            f"{spec.softmax_scale:g}, which would be lost. Fold it into the query weights."
        )
    if spec.query_scale is not None:
        raise ValueError(
            f"`query_scale` must be None; got {spec.query_scale!r}, which would be lost: {VLLM} takes such rules from "
            "fields of its own, not from the rope dict. Serve the checkpoint without overrides."
        )


def _by_transformers(rope: ModelRope, config: Mapping[str, Any], trained_length: int) -> Json:
    fields, _ = transformers_fields(rope, config)
    parameters: Json = fields["rope_parameters"]
    for entry in _entries(parameters):
        if entry["rope_type"] == "longrope":
            # The override replaces the dict after its gaps were filled.
            entry.setdefault("original_max_position_embeddings", trained_length)
    return parameters


def _entries(parameters: Json) -> list[Json]:
    """The dict, or those of the layer types in it."""
    return (
        [parameters]
        if "rope_type" in parameters
        else [entry for entry in parameters.values() if isinstance(entry, dict)]
    )


def _gathered(entries: dict[str, Json], kind: str) -> Json:
    if kind in VLLM_PER_LAYER:
        return entries
    first = next(iter(entries.values()))
    if any(entry != first for entry in entries.values()):
        raise ValueError(
            f"`rope` must turn all layers alike for the model type {kind!r}, to which {VLLM} hands one dict; got "
            f"{sorted(entries)} that differ: the setting of the others would be lost."
        )
    return first


def _entry(spec: RopeSpec, kind: str, trained_length: int) -> Json:
    """One rope dict, in the first spelling that vLLM reads whole."""
    if not isinstance(parts_of(spec)[0], Proportional):
        as_static(spec)  # only to refuse pairs that stand still
    base = to_huggingface(ModelRope({"all": spec}, ("all",)))["rope_parameters"]
    shared = {key: base[key] for key in _BESIDE if key in base and base["rope_type"] != "proportional"}
    form = geometric(spec)
    if form is not None and form.scale == 1 and form.factor == 1 and kind != "gpt_oss":
        return _whole("default", {"rope_type": "default", "rope_theta": form.theta, **shared})
    if kind == "gpt_oss" or kind in VLLM_LATENT:
        return _only_yarn(spec, base, kind)
    if form is not None and form.scale == 1 and form.factor > 1:
        linear = {"rope_type": "linear", "rope_theta": form.theta, "factor": float(form.factor)}
        return _whole("linear", linear | shared)
    if base["rope_type"] == "yarn":
        return _whole("yarn", _yarn(spec, base) | shared)
    if base["rope_type"] in ("llama3", "proportional"):
        return _whole(base["rope_type"], base)
    return _whole("longrope", _lists(spec, trained_length) | shared)


def _yarn(spec: RopeSpec, base: Json) -> Json:
    yarn = spec.transform
    assert isinstance(yarn, YaRN)
    kept = ("rope_type", "rope_theta", "original_max_position_embeddings", "truncate")
    entry = {key: base[key] for key in kept if key in base}
    entry |= {"factor": float(yarn.factor), "beta_fast": yarn.beta_fast, "beta_slow": yarn.beta_slow}
    scale = float(spec.schedule().attention_scale)
    if not math.isclose(scale, 0.1 * math.log(yarn.factor) + 1, rel_tol=1e-7):
        entry["attention_factor"] = scale
    return entry


def _only_yarn(spec: RopeSpec, base: Json, kind: str) -> Json:
    """Models whose implementation knows nothing but the plain form and YaRN."""
    if base["rope_type"] != "yarn":
        raise ValueError(
            f"`method` must be YaRN for the model type {kind!r}, of which {VLLM} builds nothing else; got "
            f"{spec.transform!r}, which would be lost. Write YaRN(...), its ramp in the index."
        )
    if kind == "gpt_oss":
        return _whole("gpt_oss", _yarn(spec, base))
    yarn = spec.transform
    assert isinstance(yarn, YaRN)
    entry = {"beta_fast": yarn.beta_fast, "beta_slow": yarn.beta_slow} | base
    if yarn.attention_scale is None:
        # Said twice for transformers, which computes another scale from `mscale` alone.
        entry.pop("attention_factor", None)
    return _whole("deepseek", entry)


def _lists(spec: RopeSpec, trained_length: int) -> Json:
    """Divisors for each pair; the scale under the keys that vLLM reads, one for each list."""
    if spec.layout != "half":
        raise ValueError(
            f"`method` must keep a base, a factor or YaRN's ramp where pairs are interleaved; got {spec.transform!r}: "
            f"{VLLM} turns divided pairs in halves only, so the pairing would be lost. Choose another method."
        )
    lists = to_huggingface(ModelRope({"all": as_static(spec)}, ("all",)))["rope_parameters"]
    scale = lists["attention_factor"]
    return {
        "rope_type": "longrope",
        "rope_theta": lists["rope_theta"],
        "short_factor": lists["short_factor"],
        "long_factor": lists["long_factor"],
        "short_mscale": scale,
        "long_mscale": scale,
        "original_max_position_embeddings": trained_length,
    }


def _whole(kind: str, entry: Json) -> Json:
    """The dict, unless a key of it is one that vLLM drops."""
    facts = VLLM_KEYS[kind]
    for key, value in entry.items():
        fact = facts.get(key)
        if fact is None or not fact.read:
            does = f"{VLLM} {fact.does} ({fact.source})" if fact else f"{VLLM} never reads it under this type"
            raise ValueError(
                f'`{key}` must be absent from the rope type "{entry["rope_type"]}"; got {value!r}, which would be '
                f"lost: {does}. Leave it out of the method, or choose another method."
            )
    return entry


def _check_table(entry: Json, length: int) -> None:
    """YaRN's table of positions ends at the trained length times the factor, whatever the server's length."""
    if entry["rope_type"] != "yarn":
        return
    rows = math.ceil(entry["factor"] * entry["original_max_position_embeddings"])
    if length > rows:
        raise ValueError(
            f"`--length` must be at most {rows}, the factor times the original length, where the table of {VLLM} ends "
            f"under YaRN; got {length}: later positions would be lost. Raise the factor."
        )


def _positions(dicts: list[Json], kind: str, length: int) -> int:
    """`max_position_embeddings` from which vLLM derives at least this length."""
    factors = [entry["factor"] for entry in dicts if entry["rope_type"] == "linear"]
    if len(factors) == len(dicts) and "gemma3" not in kind:
        return math.ceil(length / min(factors))
    return length

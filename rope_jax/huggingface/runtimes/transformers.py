"""The rope fields of a configuration that transformers reads as they are meant."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from rope_jax.huggingface.export import to_huggingface
from rope_jax.huggingface.families import family_of
from rope_jax.huggingface.methods import deepseek_softmax_scale
from rope_jax.huggingface.runtimes.composition import as_static
from rope_jax.huggingface.runtimes.facts import (
    TRANSFORMERS,
    TRANSFORMERS_FILLS_HEAD_DIM,
    TRANSFORMERS_PER_LAYER,
    TRANSFORMERS_SINCE,
)
from rope_jax.logit_scales import Mistral3QueryScale
from rope_jax.scaling import YaRN
from rope_jax.spec import ModelRope, RopeSpec

Json = dict[str, Any]
# Their rotary class takes `config.head_dim` even where it is null.
_WANTS_HEAD_DIM = ("yarn", "dynamic", "longrope")
_FIXED_BASE = ("gptj", "codegen")
# Phi-3's configuration accepts two types, and takes "yarn" for the other one.
_PHI3_TYPES = ("default", "longrope")
_ORIGINAL = "original_max_position_embeddings"
_LENGTHS = ("llama3", "yarn", "longrope")


def transformers_fields(
    rope: ModelRope, config: Mapping[str, Any], *, version: Literal[4, 5] = 5
) -> tuple[Json, tuple[str, ...]]:
    """The rope fields to put into a configuration, so that transformers builds the same frequencies.

    Args:
      rope: the settings to state.
      config: the raw configuration that the fields go into; it decides the model's class.
      version: 5 for `rope_parameters`, 4 for `rope_theta` and `rope_scaling`.

    Returns:
      (fields, remarks): a new dict of JSON values, and lines on what reads it and how.

    Raises:
      ValueError: what transformers 5.24 is known to get wrong for this model, naming what would be lost and the cure.

    Example:
      >>> from rope_jax.spec import RopeSpec
      >>> rope = ModelRope({"all": RopeSpec(64)}, ("all",))
      >>> transformers_fields(rope, {"model_type": "llama"}, version=4)[0]
      {'rope_theta': 10000.0, 'rope_scaling': None}
    """
    model = str(config.get("model_type"))
    for spec in rope.specs.values():
        if spec is not None:
            _check_scales(spec, model)
    fields = to_huggingface(spelled_for(rope, model), version=version)
    entries = _rope_dicts(fields)
    for entry in entries:
        _check_entry(entry, config, model)
        if entry["rope_type"] in _LENGTHS and config.get(_ORIGINAL) is not None and _ORIGINAL in entry:
            # Where the class has this field at the top level, that one wins.
            fields[_ORIGINAL] = entry[_ORIGINAL]
    flat = fields.get("rope_parameters")
    if version == 5 and model in TRANSFORMERS_PER_LAYER and flat is not None and "rope_type" in flat:
        raise ValueError(
            f"`rope` must have one dict per layer type for the model type {model!r}; got one for all, which "
            f"{TRANSFORMERS} ignores: its scaling would be lost. Name the layer groups by the layer types."
        )
    return fields, _remarks(rope, entries, config, version)


def _rope_dicts(fields: Mapping[str, Any]) -> list[Json]:
    """Every group's rope dict in exported fields of either version."""
    values = fields.get("rope_parameters", fields.get("rope_scaling")) or {}
    if "rope_type" in values or not values:
        return [{"rope_type": "default", "rope_theta": fields.get("rope_theta"), **values}]
    return [entry for entry in values.values() if isinstance(entry, dict)]


def spelled_for(rope: ModelRope, model: str) -> ModelRope:
    """The same schedules in methods that the model's class accepts."""
    if model != "phi3":
        return rope
    specs = {name: _phi3(spec) for name, spec in rope.specs.items()}
    return ModelRope(specs, rope.layer_groups, rope.sources, rope.warnings)


def _phi3(spec: RopeSpec | None) -> RopeSpec | None:
    """The spelling that Phi-3's configuration accepts."""
    if spec is None or spec.needs_length:
        return spec
    kind = to_huggingface(ModelRope({"all": spec}, ("all",)))["rope_parameters"]["rope_type"]
    return spec if kind in _PHI3_TYPES else as_static(spec)


def _check_scales(spec: RopeSpec, model: str) -> None:
    """Scales on logits that belong to the model's class, not to its rope dict."""
    yarn = spec.transform
    # Only these classes multiply the logits of the whole head, and they always do.
    applies = family_of(model).softmax_mscale and isinstance(yarn, YaRN)
    expected = deepseek_softmax_scale(yarn) if applies and isinstance(yarn, YaRN) else 1.0
    if not math.isclose(spec.softmax_scale, expected, rel_tol=1e-6):
        raise ValueError(
            f"`softmax_scale` must be {expected:g}, which is what {TRANSFORMERS} applies for the model type {model!r}; "
            f"got {spec.softmax_scale:g}, which would be lost. Configurations have no field for it."
        )
    if isinstance(spec.query_scale, Mistral3QueryScale) and model not in ("ministral3", "mistral4"):
        raise ValueError(
            f"`query_scale` must be None for the model type {model!r}, whose class never reads `llama_4_scaling_beta`; "
            f"got {spec.query_scale!r}, which would be lost."
        )


def _check_entry(entry: Json, config: Mapping[str, Any], model: str) -> None:
    kind = entry["rope_type"]
    null = "head_dim" in config and config["head_dim"] is None and model not in TRANSFORMERS_FILLS_HEAD_DIM
    if null and kind in _WANTS_HEAD_DIM:
        raise ValueError(
            f'`head_dim` must be a number or absent for the rope type "{kind}"; got null, with which {TRANSFORMERS} '
            "fails when it builds the frequencies. Remove the key from the configuration."
        )
    if model == "phimoe" and kind != "default":
        raise ValueError(
            f'`rope_type` must be "default" for the model type {model!r}; got "{kind}": {TRANSFORMERS} never uses the '
            "long list there, and takes the attention scale from keys of its own. Run the plain checkpoint, or vLLM."
        )
    if model == "phi3" and kind not in _PHI3_TYPES:
        raise ValueError(
            f'`rope_type` must be "default" or "longrope" for the model type {model!r}; got "{kind}", which '
            f"{TRANSFORMERS} refuses: the dependence on the length would be lost. Export a static method."
        )
    if model in _FIXED_BASE and (kind != "default" or entry["rope_theta"] != 10_000.0):
        raise ValueError(
            f"`method` must leave the model type {model!r} as it is, whose class computes its frequencies from 10000 "
            f'alone; got the rope type "{kind}", which would be lost. No configuration states it.'
        )


def _remarks(
    rope: ModelRope, entries: list[Json], config: Mapping[str, Any], version: Literal[4, 5]
) -> tuple[str, ...]:
    kinds = sorted({entry["rope_type"] for entry in entries})
    since = max((TRANSFORMERS_SINCE.get(kind, "5.0") for kind in kinds), key=_release)
    since = "4.55" if any("truncate" in entry for entry in entries) and _release(since) < (4, 55) else since
    first = "5.0" if version == 5 else since
    lines = [f"read by transformers {first} and later, checked against 5.24.0"]
    if rope.needs_length:
        lines.append(
            "transformers takes the longest row of a batch for all of them and keeps keys turned by an earlier length: "
            "run rows of equal length, each generation afresh"
        )
    for entry in entries:
        if entry["rope_type"] == "yarn" and version == 4:
            length = config.get("max_position_embeddings")
            if length not in (None, entry["original_max_position_embeddings"]):
                lines.append("releases before 4.56 take max_position_embeddings / original length for the factor")
    return tuple(dict.fromkeys(lines))


def _release(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))

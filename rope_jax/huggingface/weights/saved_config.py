"""The configuration of a model that is about to be saved."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from rope_jax.huggingface.config import from_huggingface
from rope_jax.huggingface.families import family_of as rope_family
from rope_jax.huggingface.grammar import ALIASES
from rope_jax.huggingface.rope_dict import NEW, OLD
from rope_jax.huggingface.runtimes.transformers import transformers_fields
from rope_jax.huggingface.weights.families import Family, family_of
from rope_jax.huggingface.weights.pretrained import Pretrained
from rope_jax.huggingface.weights.settings import FULL, SLIDING
from rope_jax.huggingface.weights.shape import decoder_config, of_group
from rope_jax.spec import ModelRope, RopeSpec

_ORIGINAL = "original_max_position_embeddings"
_OTHERS = (OLD, NEW, "no_rope_layers", "no_rope_layer_interval", "torch_dtype", "dtype", "auto_map")
_ROPE = ("rope_theta", "local_rope_theta", "partial_rotary_factor", "rotary_dim")
# Rotary settings under every spelling, and what is only true of the files that the model came from.
_REPLACED = frozenset((*_OTHERS, *_ROPE, *(spelling for key in _ROPE for spelling in ALIASES[key])))


def saved_config(model: Pretrained, dtype: str, version: Literal[4, 5]) -> dict[str, Any]:
    """The model's configuration with its present rotary settings, from which it can be loaded again.

    Raises:
      ValueError: rotary settings that the model type cannot state.
    """
    family = family_of(model.config)
    # A null width is absence to every reader but some of transformers' own.
    kept = {
        key: value
        for key, value in model.config.items()
        if key not in _REPLACED and not (key == "head_dim" and value is None)
    }
    name, architecture = family.saved_as
    config = kept | {"model_type": name, "architectures": [architecture]}
    config |= _rope_fields(model, family, config, version)
    config["dtype" if version == 5 else "torch_dtype"] = dtype
    _check_same(model, config)
    return config


def _rope_fields(
    model: Pretrained, family: Family, config: Mapping[str, Any], version: Literal[4, 5]
) -> dict[str, Any]:
    rope = _regrouped(model, family)
    fields, _ = transformers_fields(rope, config, version=version)
    if family.nope:
        fields["no_rope_layers"] = [int(rope.specs[group] is not None) for group in rope.layer_groups]
    settings = fields.get(NEW if version == 5 else OLD) or {}
    if rope_family(family.saved_as[0]).fraction != 1:
        # The model type's default is not the whole head.
        (fields[NEW] if version == 5 else fields).setdefault("partial_rotary_factor", 1.0)
    if settings.get(_ORIGINAL) is not None and _ORIGINAL in {**family.defaults, **config}:
        # transformers lets the one at the top level win.
        fields[_ORIGINAL] = settings[_ORIGINAL]
    return fields if version == 5 else {family.old_keys.get(key, key): value for key, value in fields.items()}


def _regrouped(model: Pretrained, family: Family) -> ModelRope:
    """The same settings in the groups that the model type has words for."""
    config = model.decoder.config
    by_group = of_group(model.rope, config)
    layers = [by_group[group] for group in config.layer_groups]
    if family.by_type:
        windows = dict(config.windows)
        kinds = tuple(FULL if windows.get(group) is None else SLIDING for group in config.layer_groups)
    elif family.nope and None in layers:
        kinds = tuple("nope" if spec is None else "rope" for spec in layers)
    else:
        kinds = ("all",) * len(layers)
    specs: dict[str, RopeSpec | None] = {}
    for layer, (kind, spec) in enumerate(zip(kinds, layers, strict=True)):
        if specs.setdefault(kind, spec) != spec:
            raise ValueError(
                f"`rope` must turn all layers alike that {family.saved_as[0]} has one setting for; got another one for "
                f"layer {layer} ({kind}). Give them one spec."
            )
        if spec is None and not family.nope:
            raise ValueError(
                f"`rope` must turn every layer, since {family.saved_as[0]} cannot leave one out; got None for layer "
                f"{layer}. Drop() has no rope type."
            )
    width = config.attention.head_width
    # A spec made by hand may know nothing of the channels that pass through.
    specs = {kind: None if spec is None else replace(spec, head_dim=width) for kind, spec in specs.items()}
    return ModelRope(specs, kinds, model.rope.sources)


def _check_same(model: Pretrained, config: Mapping[str, Any]) -> None:
    """What is written must describe the model that is in memory."""
    rope = from_huggingface(config, strict=False)
    made, decoder = decoder_config(config, rope), model.decoder.config
    # How the decoder computes, and what its groups are called, is no part of the file.
    ours = replace(
        decoder, dtype="float32", remat=False, unroll=None, backend="auto", pattern=made.pattern, windows=made.windows
    )
    windows = [[dict(shape.windows).get(group) for group in shape.layer_groups] for shape in (made, decoder)]
    length = 4 * model.trained_length
    schedules = zip(_layer_schedules(rope, length), _layer_schedules(model.rope, length), strict=True)
    if made != ours or windows[0] != windows[1] or not all(_alike(one, other) for one, other in schedules):
        raise ValueError(
            f"`model` must be one that a configuration of {config['model_type']} describes; got a decoder or a rope "
            "that would be read back as another. Keep to the choices of its family."
        )


def _layer_schedules(rope: ModelRope, length: int) -> list[Any]:
    schedules = rope.schedules(length)
    return [schedules[group] for group in rope.layer_groups]


def _alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    frequencies = one.float64(), other.float64()
    return frequencies[0].shape == frequencies[1].shape and bool(
        np.allclose(*frequencies, rtol=1e-6, atol=0)
        and np.allclose(one.attention_scale, other.attention_scale, rtol=1e-6, atol=0)
    )

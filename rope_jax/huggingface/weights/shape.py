"""From a raw configuration to the decoder that it describes."""

from collections.abc import Mapping
from typing import Any

from rope_jax import nn
from rope_jax.huggingface.weights.families import family_of
from rope_jax.huggingface.weights.readings import Windows
from rope_jax.huggingface.weights.settings import FULL, SLIDING, Settings
from rope_jax.spec import ModelRope, RopeSpec

TRAINED = "trained_length"
"""A key of config.json that only exports of weights trained further have: no other tells that apart from a method."""


def decoder_config(raw: Mapping[str, Any], rope: ModelRope, *, dtype: str = "float32") -> nn.DecoderConfig:
    """The decoder of a configuration.

    Args:
      raw: the configuration, as JSON has it.
      rope: its rotary settings.
      dtype: of activations.

    Raises:
      ValueError, TypeError: an unknown model type, values that the decoder has no choice for, logit scales that no
        model of that type has; the message names the key.
    """
    family = family_of(raw)
    settings = Settings(raw, family.defaults, raw["model_type"])
    choices: dict[str, Any] = dict(family.fixed)
    for reading in family.readings:
        choices |= reading(settings)
    pattern, windows = layer_pattern(rope.layer_groups, family.windows(settings, rope))
    specs = turning(rope)
    _refuse_scales(specs, raw["model_type"])
    layouts = {spec.layout for spec in specs.values()}
    streams = {spec.pair_axes for spec in specs.values()}
    config = nn.DecoderConfig(
        **choices,
        pattern=pattern,
        windows=windows,
        layout=next(iter(layouts), "half"),
        pair_axes=next(iter(streams), None),
        dtype=dtype,
    )
    check_rope(rope, config)
    wrong = {group: spec.head_dim for group, spec in specs.items() if spec.head_dim != config.attention.head_width}
    if wrong:
        raise ValueError(
            f"`head_dim` must be {config.attention.head_width} for every layer of this model; got {wrong}. "
            "Correct the configuration."
        )
    return config


def trained_length(raw: Mapping[str, Any]) -> int:
    """Tokens that the model was trained on.

    As an export of trained weights states it (`TRAINED`), else the original length of its rope settings, else its
    longest position.

    Raises:
      ValueError: none is stated, nor a default of the model type.
    """
    if TRAINED in raw:
        return Settings(raw, family_of(raw).defaults, raw["model_type"]).count(TRAINED)
    key = "original_max_position_embeddings"
    dicts = [value for name in ("rope_parameters", "rope_scaling") if isinstance(value := raw.get(name), Mapping)]
    dicts += [value for outer in dicts for value in outer.values() if isinstance(value, Mapping)]
    stated = [value[key] for value in (*dicts, raw) if value.get(key) is not None]
    settings = Settings({key: stated[0]} if stated else raw, family_of(raw).defaults, raw["model_type"])
    return settings.count(key if stated else "max_position_embeddings")


def layer_pattern(groups: tuple[str, ...], windows: Windows) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Layer groups of the decoder, and their windows: those of the rope settings, split where windows differ."""
    mixed = {group for group in groups if len({w for g, w in zip(groups, windows, strict=True) if g == group}) > 1}

    def name(group: str, window: int | None) -> str:
        if group not in mixed:
            return group
        kind = FULL if window is None else SLIDING
        return kind if set(groups) == {"all"} else f"{group}, {kind}"

    pattern = tuple(name(group, window) for group, window in zip(groups, windows, strict=True))
    named = {group: window for group, window in zip(pattern, windows, strict=True) if window is not None}
    return pattern if len(set(pattern)) > 1 else pattern[:1], tuple(named.items())


def turning(rope: ModelRope) -> dict[str, RopeSpec]:
    """The groups that rotate."""
    return {group: spec for group, spec in rope.specs.items() if spec is not None}


def check_rope(rope: ModelRope, config: nn.DecoderConfig) -> None:
    """Refuse rotary settings that a decoder does not apply as they are meant.

    Raises:
      TypeError: no ModelRope.
      ValueError: layers, layout, widths or streams that are not the decoder's.
    """
    if not isinstance(rope, ModelRope):
        raise TypeError(
            f"`rope` must be a ModelRope; got {type(rope).__name__}. "
            "Put a RopeSpec into one: replace(model.rope, specs={group: spec})."
        )
    if len(rope.layer_groups) != config.layers:
        raise ValueError(
            f"`rope` must have the {config.layers} layers of the decoder; got {len(rope.layer_groups)}. "
            "Give the group of every layer."
        )
    for group, spec in turning(rope).items():
        if spec.layout != config.layout:
            raise ValueError(
                f"`rope` must have the layout {config.layout!r} of the decoder's weights; got {spec.layout!r} for "
                f"{group!r}. Use replace(spec, layout={config.layout!r})."
            )
        _check_widths(spec, group, config.attention.head_width)
        if spec.pair_axes != config.pair_axes:
            raise ValueError(
                f"`rope` must turn by the position streams of the decoder, pair_axes {config.pair_axes}; got "
                f"{spec.pair_axes} for {group!r}. Use replace(spec, pair_axes={config.pair_axes})."
            )
    of_group(rope, config)


def _refuse_scales(specs: Mapping[str, RopeSpec], model: str) -> None:
    # The published classes of the families here read no such key, so following it would give other logits than theirs.
    for group, spec in specs.items():
        if spec.softmax_scale != 1 or spec.query_scale is not None:
            raise ValueError(
                f"`rope_parameters` must leave logits unscaled for the model type {model!r}, which has no logit scale; "
                f"got softmax_scale {spec.softmax_scale} and query_scale {spec.query_scale} for {group!r}. Remove the "
                "key, and give the loaded model such a rope if it is meant: replace(model, rope=...)."
            )


def _check_widths(spec: RopeSpec, group: str, width: int) -> None:
    # A spec that turns the whole of its head, as most made by hand do, may sit in a wider one.
    known = spec.head_dim if spec.head_dim != spec.rotary_dim else None
    if spec.rotary_dim > width or known not in (None, width):
        raise ValueError(
            f"`rope` must turn heads of the decoder's width {width}; got rotary_dim {spec.rotary_dim} and head_dim "
            f"{spec.head_dim} for {group!r}. Build the spec with head_dim={width}."
        )


def of_group(rope: ModelRope, config: nn.DecoderConfig) -> dict[str, RopeSpec | None]:
    """The spec of every layer group of the decoder, layer by layer.

    Raises:
      ValueError: layers that share a group of the decoder and turn differently.
    """
    specs: dict[str, RopeSpec | None] = {}
    names: dict[str, str] = {}
    for layer, (group, name) in enumerate(zip(config.layer_groups, rope.layer_groups, strict=True)):
        spec = rope.specs[name]
        if group in names and names[group] != name and specs[group] != spec:
            raise ValueError(
                f"`rope` must turn the layers of the decoder's group {group!r} alike; got {names[group]!r} and "
                f"{name!r} (layer {layer}). Give them one spec."
            )
        specs.setdefault(group, spec)
        names.setdefault(group, name)
    return specs

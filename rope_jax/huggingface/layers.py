"""Which layers of a model turn alike: its layer groups."""

from dataclasses import dataclass

from rope_jax.huggingface.families import Family
from rope_jax.huggingface.grammar import Fields, Log

GLOBAL, LOCAL = "full_attention", "sliding_attention"
# Far above every model; a wrong number must not fill memory with names of layers.
MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Layers:
    """The group of each layer, and the groups that do not turn."""

    groups: tuple[str, ...]
    nope: frozenset[str]


def read_layers(config: Fields, family: Family, log: Log, *, by_type: bool, nope_types: frozenset[str]) -> Layers:
    """Groups by layer type where the types turn differently, "rope" and "nope" where some do not turn, else "all".

    Args:
      by_type: whether the rope settings are given per layer type.
      nope_types: layer types whose settings are null.
    """
    count = config.required_integer("num_hidden_layers")
    if count > MOST_LAYERS:
        raise ValueError(f"`num_hidden_layers` must be at most {MOST_LAYERS}; got {count}. Correct the configuration.")
    types = _layer_types(config, family, count)
    if types is None and (by_type or _window_decides(config, family)):
        raise ValueError(
            "`layer_types` must be given, since the rope settings differ by layer type; got none. "
            f"List the type of each of the {count} layers."
        )
    turning = _turning(config, family, count, types, log)
    kinds = types or ("all",) * count
    still = frozenset(kind for kind in kinds if not any(t for k, t in zip(kinds, turning, strict=True) if k == kind))
    still |= nope_types
    types_decide = family.nope_interval is None and all(t or k in still for k, t in zip(kinds, turning, strict=True))
    if by_type or (still and types and types_decide):
        return _used(tuple(k if t or k in still else "nope" for k, t in zip(kinds, turning, strict=True)), still)
    if all(turning):
        return _used(("all",) * count, frozenset())
    if not any(turning):
        return _used(("all",) * count, frozenset({"all"}))
    return _used(tuple("rope" if t else "nope" for t in turning), frozenset())


def _used(groups: tuple[str, ...], nope: frozenset[str]) -> Layers:
    return Layers(groups, frozenset(nope | {"nope"}) & frozenset(groups))


def _window_decides(config: Fields, family: Family) -> bool:
    """Whether the layers of one type do not turn (Cohere 2; EXAONE 4 where it has a sliding window)."""
    if family.nope_type is None:
        return False
    return not family.nope_needs_window or config.find("sliding_window") is not None


def _layer_types(config: Fields, family: Family, count: int) -> tuple[str, ...] | None:
    found = config.find("layer_types")
    if found is not None:
        types, path = found
        if not isinstance(types, list | tuple) or not all(isinstance(kind, str) for kind in types):
            raise TypeError(f"`{path}` must be a list of names; got {types!r}.")
        if len(types) != count:
            raise ValueError(f"`{path}` must name the type of each of {count} layers; got {len(types)} entries.")
        return tuple(types)
    pattern = config.find("sliding_window_pattern") or config.find("global_attn_every_n_layers")
    every, path = pattern if pattern is not None else (family.pattern, "")
    if every is None:
        return None
    if isinstance(every, str) and every and set(every) <= {"L", "G"}:
        # One letter per layer, repeated; the last layer is global whatever its letter.
        letters = [every[layer % len(every)] for layer in range(count - 1)] + ["G"]
        return tuple(GLOBAL if letter == "G" else LOCAL for letter in letters)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"`{path}` must be a positive integer or letters L and G; got {every!r}.")
    shift = 0 if family.first_global else 1
    return tuple(LOCAL if (layer + shift) % every else GLOBAL for layer in range(count))


def _turning(config: Fields, family: Family, count: int, types: tuple[str, ...] | None, log: Log) -> tuple[bool, ...]:
    """For each layer whether it rotates."""
    if config.flag("alibi"):
        log.warn("`alibi` is true: no layer rotates.")
        return (False,) * count
    listed = config.find("no_rope_layers")
    if listed is not None and listed[0] != []:
        flags, path = listed
        if not isinstance(flags, list | tuple) or any(flag not in (0, 1) for flag in flags):
            raise ValueError(f"`{path}` must be a list of 1 (the layer rotates) and 0; got {flags!r}.")
        if len(flags) != count:
            raise ValueError(f"`{path}` must have one entry for each of {count} layers; got {len(flags)}.")
        # The name reads the other way round: 1 means that the layer rotates.
        return tuple(bool(flag) for flag in flags)
    if family.nope_interval is not None:
        interval = config.integer("no_rope_layer_interval")
        every = family.nope_interval if interval is None else interval[0]
        return tuple((layer + 1) % every != 0 for layer in range(count))
    if types is not None and _window_decides(config, family):
        return tuple(kind != family.nope_type for kind in types)
    return (True,) * count

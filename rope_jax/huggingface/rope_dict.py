"""The rope dict of a configuration: its two names, its nested form, and its type."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from rope_jax.huggingface.families import Family
from rope_jax.huggingface.grammar import Fields, Log, Rope

OLD, NEW = "rope_scaling", "rope_parameters"
# What two spellings of the type may say together, and what they then mean.
PAIRS: Mapping[frozenset[str], str] = MappingProxyType(
    {
        frozenset(("su", "longrope")): "longrope",
        frozenset(("yarn", "longrope")): "longrope",
        frozenset(("mrope", "default")): "default",
    }
)
RENAMED: Mapping[str, str] = MappingProxyType({"su": "longrope", "mrope": "default"})


@dataclass(frozen=True)
class RopeDict:
    """The settings as they stand: one dict, or one per layer type."""

    outer: Fields
    groups: Mapping[str, Fields] | None
    nope_types: frozenset[str]
    by_type: bool
    # Sliding layers are plain, whatever the one dict says.
    plain_local: bool


def read_rope_dict(config: Fields, family: Family, model: str, log: Log) -> RopeDict:
    """The rope settings, with the family's where the file has none."""
    values, path = _merged(config, log)
    if not values and family.rope:
        values, path = family.rope, f"default of {model}: {NEW}"
    local = config.find("local_rope_theta") is not None
    types = config.find("layer_types")
    labels = set(types[0]) if types is not None and isinstance(types[0], list | tuple) else set()
    nested = {
        key: value
        for key, value in values.items()
        if isinstance(value, Mapping) or (value is None and (key in labels or key.endswith("_attention")))
    }
    if not nested:
        by_type = family.plain_local or family.local_theta is not None or local
        return RopeDict(Fields(values, path), None, frozenset(), by_type, family.plain_local or local)
    outer = {key: value for key, value in values.items() if key not in nested}
    _check_outer(outer, path, log)
    groups = {key: Fields(value, f"{path}.{key}") for key, value in nested.items() if value is not None}
    still = frozenset(key for key, value in nested.items() if value is None)
    return RopeDict(Fields(outer, path), groups, still, True, False)


def _merged(config: Fields, log: Log) -> tuple[Mapping[str, Any], str]:
    """`rope_parameters`, `rope_scaling`, or both where they do not contradict each other."""
    found: list[tuple[Mapping[str, Any], str]] = []
    for key in (OLD, NEW):
        value = config.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"`{key}` must be an object or null; got {value!r}.")
        if value:
            found.append((value, key))
    if len(found) < 2:
        return found[0] if found else ({}, NEW)
    old, new = found[0][0], found[1][0]
    clash = sorted(key for key in set(old) & set(new) if old[key] != new[key])
    kinds = [values.get("rope_type", values.get("type")) for values in (old, new)]
    if None not in kinds and kinds[0] != kinds[1] and frozenset(map(str, kinds)) not in PAIRS and not clash:
        clash = ["rope_type"]
    if clash:
        # transformers replaces rope_parameters by rope_scaling as a whole, and loses a base that stands in the former.
        log.doubt(
            f"`{OLD}` and `{NEW}` must agree; got different values of {', '.join(clash)}. Keep the one that is meant."
        )
    return {**new, **old}, OLD


def _check_outer(outer: Mapping[str, Any], path: str, log: Log) -> None:
    """Beside the dicts of the layer types only settings that hold for all of them may stand."""
    for key, value in outer.items():
        inert = key in ("rope_type", "type") and value in ("default", None)
        if not inert and key not in ("rope_theta", "partial_rotary_factor", "truncate"):
            log.doubt(f"`{path}.{key}` must be inside the dict of a layer type; got {value!r}. Move it there.")


def read_type(rope: Rope, known: Mapping[str, Any]) -> str:
    """The rope type of a group's dict.

    Raises:
      ValueError: a type that is not known, which has no formula to read it by, or two types that differ.
    """
    new, old = rope.own.values.get("rope_type"), rope.own.values.get("type")
    name = _agreed(rope, new, old)
    if name is None:
        return _untyped(rope)
    # The first Phi-3 files call LongRoPE "yarn".
    if name == "yarn" and rope.own.values.get("short_factor") is not None:
        return "longrope"
    name = RENAMED.get(name, name)
    if name not in known:
        near = get_close_matches(name, sorted(known), n=1)
        raise ValueError(
            f"`{rope.own.at('rope_type')}` must be one of {sorted(known)}; got {name!r}. "
            + (f'Did you mean "{near[0]}"?' if near else "Build the ModelRope by hand.")
        )
    return name


def _agreed(rope: Rope, new: Any, old: Any) -> str | None:
    for key, value in (("rope_type", new), ("type", old)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"`{rope.own.at(key)}` must be a name; got {value!r}.")
    if new is None or old is None or new == old:
        return old if new is None else new
    pair = PAIRS.get(frozenset((new, old)))
    lists = rope.own.values.get("short_factor") is not None
    if pair is None or ("yarn" in (new, old) and not lists):
        rope.log.doubt(
            f"`{rope.own.at('type')}` and `{rope.own.at('rope_type')}` must agree; got {old!r} and {new!r}. Remove the "
            "wrong one."
        )
        return new
    return pair


def _untyped(rope: Rope) -> str:
    keys = {key for key, value in rope.own.values.items() if value is not None}
    inert = {"rope_theta", "partial_rotary_factor", "max_position_embeddings", "original_max_position_embeddings"}
    keys -= inert | {"mrope_section", "mrope_interleaved"}
    if keys == {"factor"}:
        # What exporters wrote that know only position interpolation.
        rope.log.warn(f'`{rope.own.at("rope_type")}` is absent beside a lone factor: read as "linear".')
        return "linear"
    if keys:
        raise ValueError(
            f"`{rope.own.at('rope_type')}` must be given beside {', '.join(sorted(keys))}; got none. Name the method."
        )
    return "default"

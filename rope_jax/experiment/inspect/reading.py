"""A configuration as a careful reader needs it: groups of layers, every number with its origin, what looks odd."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_jax.huggingface import from_huggingface
from rope_jax.huggingface.grammar import Fields
from rope_jax.huggingface.source import read_config
from rope_jax.scaling import FrequencyTransform
from rope_jax.scaling.base import Chain
from rope_jax.spec import ModelRope, RopeSpec

ORIGINAL, LONGEST = "original_max_position_embeddings", "max_position_embeddings"
ROPE_DICTS = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class Stated:
    """A value and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Group:
    """Layers that turn alike. Without a spec they do not turn."""

    name: str
    layers: tuple[int, ...]
    spec: RopeSpec | None
    trained: Stated

    @property
    def turns(self) -> bool:
        """Whether there is a schedule to look at; Llama 4's layers without rotation have a spec for their queries."""
        return self.spec is not None and self.part("Drop") is None

    @property
    def factor(self) -> float | None:
        """The factor of the method, 1 where there is none, None where a method stretches without one."""
        if self.spec is None:
            return 1.0
        known = [part.factor for part in parts(self.spec.transform) if hasattr(part, "factor")]
        if known:
            return float(known[0])
        stretching = ("BaseChange", "Rescale", "ClippedRoPE")
        return None if any(type(part).__name__ in stretching for part in parts(self.spec.transform)) else 1.0

    @property
    def target_length(self) -> int | None:
        """Factor x trained length, where the method states both."""
        return None if self.factor is None else round(self.factor * self.trained.value)

    def part(self, name: str) -> Any:
        """The part of the method that is of this class, None where there is none."""
        found = parts(self.spec.transform) if self.spec is not None else ()
        return next((part for part in found if type(part).__name__ == name), None)


@dataclass(frozen=True, eq=False)
class Inspection:
    """One configuration, read."""

    source: str
    raw: Mapping[str, Any]
    rope: ModelRope
    groups: tuple[Group, ...]
    claimed: Stated | None
    warnings: tuple[str, ...]

    def origin(self, group: str, name: str) -> str | None:
        """Where a number of a group came from, as the reader of the file noted it."""
        return self.rope.sources.get(f"{group}.{name}", self.rope.sources.get(name))

    @property
    def short_name(self) -> str:
        """The folder or file that holds it, in one word."""
        path = Path(self.source)
        if path.name == "config.json":
            return path.absolute().parent.name
        return path.stem if path.suffix in (".json", ".gguf") else path.name or self.source

    @property
    def turning(self) -> tuple[Group, ...]:
        """Groups that have a schedule to look at."""
        return tuple(group for group in self.groups if group.turns)

    @property
    def default_lengths(self) -> tuple[int, ...]:
        """Where to look when nobody says: the claimed length; for methods that follow the length also others."""
        claimed = self.claimed.value if self.claimed else max(group.trained.value for group in self.groups)
        found = {claimed}
        for group in self.turning:
            if group.spec is not None and group.spec.needs_length:
                found |= {group.trained.value, group.target_length or claimed}
        return tuple(sorted(found))


def read_inspection(
    source: Mapping[str, Any] | str | Path, *, strict: bool = True, trained_length: int | None = None
) -> Inspection:
    """Read a configuration.

    Args:
      source: a dict, a config.json, a folder that holds one, a hub id, or a GGUF file.
      strict: refuse what would have to be guessed; otherwise it is read with a warning.
      trained_length: tokens the model was trained on, where the file does not say or is wrong.

    Raises:
      ValueError, TypeError, FileNotFoundError: as `from_huggingface`; no length anywhere in the file.

    Example:
      >>> config = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
      >>> read_inspection(config).groups[0].trained
      Stated(value=4096, origin='max_position_embeddings')
    """
    raw, warnings = _gguf_config(source) if str(source).endswith(".gguf") else (read_config(source), ())
    if trained_length is not None and trained_length < 1:
        raise ValueError(f"`trained_length` must be at least 1 token; got {trained_length}.")
    rope = from_huggingface(raw, strict=strict)
    given = None if trained_length is None else Stated(trained_length, "--trained-length")
    claimed = _claimed(raw)
    groups = []
    for name, spec in rope.specs.items():
        layers = tuple(layer for layer, group in enumerate(rope.layer_groups) if group == name)
        groups.append(Group(name, layers, spec, given or _trained(raw, rope, name, spec, claimed)))
    name = "a dict" if isinstance(source, Mapping) else str(source)
    return Inspection(name, raw, rope, tuple(groups), claimed, (*warnings, *rope.warnings))


def lengths_for(asked: Sequence[int] | None, *inspections: Inspection) -> tuple[int, ...]:
    """Where to look: the lengths that were asked for, or the defaults of all configurations; rising.

    Raises:
      ValueError: a length below 1.
    """
    if asked is not None and min(asked, default=0) < 1:
        raise ValueError(f"`length` must be at least 1 token; got {list(asked)}.")
    return tuple(sorted(set(asked or [length for one in inspections for length in one.default_lengths])))


def parts(transform: FrequencyTransform) -> tuple[FrequencyTransform, ...]:
    """The methods that a transform is made of, first applied first."""
    return transform.transforms if isinstance(transform, Chain) else (transform,)


def method_name(spec: RopeSpec) -> str:
    """The classes of a method, without their parameters: `YaRN`, `Proportional + PositionInterpolation`."""
    return " + ".join(type(part).__name__ for part in parts(spec.transform))


def fields_of(spec: RopeSpec) -> Iterator[tuple[str, str, Any]]:
    """(class, name, value) of everything that the method sets."""
    for part in parts(spec.transform):
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            yield type(part).__name__, field.name, getattr(part, field.name)


def stated(raw: Mapping[str, Any], key: str, group: str = "") -> Stated | None:
    """What the file itself says under a key: in the dict of the group, in the one around it, or at the top level."""
    places = [Fields(raw)]
    for name in ROPE_DICTS:
        outer = raw.get(name)
        if isinstance(outer, Mapping):
            inner = outer.get(group)
            own = [Fields(inner, f"{name}.{group}")] if isinstance(inner, Mapping) else []
            places[:0] = [*own, Fields(outer, name)]
    found = next((hit for place in places if (hit := place.find(key)) is not None), None)
    return None if found is None else Stated(*found)


def _claimed(raw: Mapping[str, Any]) -> Stated | None:
    found = Fields(raw).integer(LONGEST)
    return None if found is None else Stated(*found)


def _trained(
    raw: Mapping[str, Any], rope: ModelRope, group: str, spec: RopeSpec | None, claimed: Stated | None
) -> Stated:
    """The original length, from the method that uses it or from the file; the longest length where there is none."""
    known = [] if spec is None else [value for _, name, value in fields_of(spec) if name == "original_length"]
    if known:
        origin = rope.sources.get(f"{group}.original_length", rope.sources.get("original_length", "the method"))
        return Stated(int(known[0]), origin)
    original = stated(raw, ORIGINAL, group)
    if original is not None and isinstance(original.value, int | float):
        return Stated(int(original.value), original.origin)
    if claimed is None:
        raise ValueError(
            f"`{LONGEST}` must be given, since turns are counted within the trained length; got none. "
            "Pass --trained-length."
        )
    return claimed


def _gguf_config(source: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The configuration made of a GGUF file's metadata, and what was doubtful in them."""
    from rope_jax.huggingface.weights.gguf import open_gguf

    found = open_gguf(source)
    return dict(found.config), tuple(found.warnings)

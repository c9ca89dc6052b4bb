"""Every number of a group with where it came from."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rope_jax.experiment.inspect.reading import Group, Inspection, fields_of, method_name, stated
from rope_jax.experiment.inspect.spectrum import Spectrum, number, tokens

DERIVED = "derived"


@dataclass(frozen=True)
class Setting:
    """One line of the table: a name, a value (JSON), how it is written, and its origin."""

    name: str
    value: Any
    text: str
    origin: str


def settings(inspection: Inspection, group: Group, spectra: tuple[Spectrum, ...]) -> tuple[Setting, ...]:
    """What was read, then what follows from it."""
    if group.spec is None:
        return (Setting("method", None, "none: these layers do not turn", DERIVED),)
    return (*_read(inspection, group), *_lengths(inspection, group), *_scales(inspection, group, spectra))


def _read(inspection: Inspection, group: Group) -> list[Setting]:
    spec = group.spec
    assert spec is not None

    def line(name: str, value: Any, *sources: str, fallback: str = DERIVED) -> Setting:
        known = [found for source in sources if (found := inspection.origin(group.name, source)) is not None]
        return Setting(name, value, written(value), known[0] if known else fallback)

    found = [
        line("method", method_name(spec), "rope_type", fallback=_method_origin(inspection, group)),
        line("theta", spec.theta, "theta"),
        line("head_dim", spec.head_dim, "head_dim"),
        line("rotary_dim", spec.rotary_dim, "rotary_dim", "partial_rotary_factor", fallback="head_dim"),
    ]
    for part, name, value in fields_of(spec):
        # A ramp in turns is in no configuration; the scale has its own line below.
        if value is None or name in ("original_length", "attention_scale") or (name, value) == ("ramp", "index"):
            continue
        place = stated(inspection.raw, name, group.name) if name == "truncate" else None
        found.append(line(name, value, name, fallback=place.origin if place else f"default of {part}"))
    found.append(line("layout", spec.layout, "layout"))
    if spec.pair_axes is not None:
        found.append(line("pair_axes", list(spec.pair_axes), "pair_axes"))
    return found


def _lengths(inspection: Inspection, group: Group) -> list[Setting]:
    trained, claimed, target = group.trained, inspection.claimed, group.target_length
    found = [Setting("trained_length", trained.value, tokens(trained.value), trained.origin)]
    if group.factor not in (None, 1.0):
        found.append(Setting("target_length", target, tokens(target or 0), "factor x trained_length"))
    if claimed is not None:
        found.append(Setting("claimed_length", claimed.value, tokens(claimed.value), claimed.origin))
    return found


def _scales(inspection: Inspection, group: Group, spectra: tuple[Spectrum, ...]) -> list[Setting]:
    spec = group.spec
    assert spec is not None
    scales = list(dict.fromkeys(spectrum.attention_scale for spectrum in spectra))
    origin = inspection.origin(group.name, "attention_scale") or f"{method_name(spec)} has none"
    rotated = "" if spec.rotary_dim == spec.head_dim else ", on rotated channels only"
    found = []
    for name, power, why in (("attention_scale", 1, origin), ("logit_scale", 2, f"attention_scale squared{rotated}")):
        if not scales:
            break
        values = [one**power for one in scales]
        text = ", ".join(f"{value:.6g}" for value in values)
        found.append(Setting(name, values[0] if len(values) == 1 else values, text, why))
    if spec.softmax_scale != 1:
        origin = inspection.origin(group.name, "softmax_scale") or DERIVED
        found.append(
            Setting("softmax_scale", spec.softmax_scale, f"{spec.softmax_scale:.6g}", f"{origin}, on the whole head")
        )
    if spec.query_scale is not None:
        origin = inspection.origin(group.name, "query_scale") or DERIVED
        found.append(Setting("query_scale", repr(spec.query_scale), repr(spec.query_scale), origin))
    return found


def written(value: Any) -> str:
    """A setting as the table shows it; lists by their length and extent, streams by their runs."""
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(f"{axis} x {len(list(run))}" for axis, run in groupby(value))
    if isinstance(value, tuple):
        return f"{len(value)} numbers, {number(min(value))} to {number(max(value))}"
    if isinstance(value, int | float):
        return f"{value:,.12g}" if abs(value) < 1e15 else f"{value:g}"
    return str(value)


def _method_origin(inspection: Inspection, group: Group) -> str:
    for key in ("rope_type", "type"):
        found = stated(inspection.raw, key, group.name)
        if found is not None:
            text = f"{found.origin} {found.value!r}"
            spared = group.part("Identity") is not None and found.value not in ("default", "mrope")
            return f"{text} spares this group" if spared else text
    return "no rope type in the file"

"""Facts about a configuration that a careful reader would want to be told, each with what follows from it."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_jax.diagnostics import base_bound, pair_of_turns, stretch
from rope_jax.experiment.inspect.compare import ALIKE, said
from rope_jax.experiment.inspect.published import published_like
from rope_jax.experiment.inspect.reading import LONGEST, ORIGINAL, Group, Inspection, Stated, parts, stated
from rope_jax.experiment.inspect.spectrum import Spectrum, most_changed, number, ranges, spectrum_at
from rope_jax.huggingface.layers import LOCAL
from rope_jax.scaling import chain


def findings(inspection: Inspection, group: Group, spectrum: Spectrum) -> tuple[str, ...]:
    """One sentence or two for each fact about a group's settings, most telling first."""
    rules = (_lengths, _origin_of_length, _published, _truncation, _scale, _follows_length, _unseen, _base, _partial)
    return tuple(text for rule in rules for text in rule(inspection, group, spectrum))


def _lengths(inspection: Inspection, group: Group, _: Spectrum) -> Iterator[str]:
    claimed, trained, target = inspection.claimed, group.trained.value, group.target_length
    if claimed is None or target is None or group.factor in (None, 1.0) or claimed.value == target:
        return
    if group.part("DynamicNTK") is not None or group.part("PositionInterpolation") is not None:
        return
    factor = f"factor {number(group.factor or 1)} x original length {trained} = {target}"
    if claimed.value == trained:
        yield f"{factor}, but {claimed.origin} is still the original length: a runtime that trusts it stops there."
    elif target > claimed.value:
        yield f"{factor}, but {claimed.origin} is {claimed.value}: it is stretched for more than it claims."
    else:
        yield f"{factor}, but {claimed.origin} is {claimed.value}: it claims more than it is stretched for."


def _origin_of_length(inspection: Inspection, group: Group, spectrum: Spectrum) -> Iterator[str]:
    claimed, factor = inspection.claimed, group.factor
    if claimed is None or factor in (None, 1.0) or stated(inspection.raw, ORIGINAL, group.name) is not None:
        return
    if group.trained != claimed or group.part("DynamicNTK") is not None:
        return
    before = round(claimed.value / (factor or 1))
    text = (
        f"{ORIGINAL} is absent: {LONGEST} {claimed.value} is taken, as transformers would. If that is the extended "
        f"length, the model was trained on {claimed.value} / {number(factor or 1)} = {before} tokens"
    )
    changed = _edited(group, original_length=before)
    if changed is None:
        yield f"{text}; the frequencies are the same either way, the turns counted here are not."
    else:
        yield f"{text}, and with that original length {_difference(changed, spectrum)}."


def _published(inspection: Inspection, group: Group, spectrum: Spectrum) -> Iterator[str]:
    found = published_like(inspection, group)
    if found is None:
        return
    row, changes = found
    if not changes:
        same = ", ".join(f"{name} {_word(value)}" for name, value in row.settings.items())
        yield f"it looks like {row.name}, whose published configuration has the same {same}."
        return
    part = group.part(row.method)
    apart = " and ".join(
        f"{name} {_word(value)} where this file has {_word(getattr(part, name))}" for name, value in changes.items()
    )
    changed = _edited(group, **changes)
    assert changed is not None
    then = _difference(changed, spectrum)
    yield f"it looks like {row.name}, whose published configuration has {apart}; with it {then}."


def _truncation(inspection: Inspection, group: Group, spectrum: Spectrum) -> Iterator[str]:
    method, spec = group.part("YaRN") or group.part("DynamicYaRN"), group.spec
    if method is None or spec is None or method.ramp != "index":
        return
    ends = [
        pair_of_turns(spec.rotary_dim, spec.theta, method.original_length, turns)
        for turns in (method.beta_fast, method.beta_slow)
    ]
    limits = (0.0, spec.rotary_dim - 1.0)
    exact = " to ".join(f"{min(max(end, limits[0]), limits[1]):.2f}" for end in ends)
    rounded = f"{max(math.floor(ends[0]), 0)} to {min(math.ceil(ends[1]), spec.rotary_dim - 1)}"
    other = _edited(group, truncate=not method.truncate)
    assert other is not None
    place = stated(inspection.raw, "truncate", group.name)
    state = f"truncate is {_word(method.truncate)} ({place.origin if place else 'default'})"
    now, then = (rounded, exact) if method.truncate else (exact, rounded)
    yield (
        f"{state}: the ramp from kept to interpolated runs from pair {now}. With {_word(not method.truncate)} it would "
        f"run from {then}, and {_difference(other, spectrum)}."
    )


def _scale(inspection: Inspection, group: Group, spectrum: Spectrum) -> Iterator[str]:
    origin = inspection.origin(group.name, "attention_scale")
    if origin is None:
        return
    scale, factor = number(spectrum.attention_scale), group.factor or 1.0
    yarn = group.part("YaRN")
    if origin == "formula of longrope":
        yield (
            f"attention_factor is absent: sqrt(1 + ln {number(factor)} / ln {group.trained.value}) = {scale} is used, "
            "with both lists."
        )
    elif origin == "formula of yarn" and yarn is not None:
        if yarn.mscale is None and yarn.mscale_all_dim is None:
            yield f"attention_factor is absent: 0.1 ln {number(factor)} + 1 = {scale} is used."
        else:
            yield (
                f"attention_factor is absent: mscale {yarn.mscale} and mscale_all_dim {yarn.mscale_all_dim} give the "
                f"quotient {scale}."
            )
    elif yarn is not None:
        formula = 0.1 * math.log(factor) + 1
        same = math.isclose(formula, spectrum.attention_scale, rel_tol=1e-6)
        yield (
            f"{origin} makes the attention scale {scale}, which is what 0.1 ln {number(factor)} + 1 gives."
            if same
            else f"{origin} makes the attention scale {scale}; 0.1 ln {number(factor)} + 1 would be {number(formula)}."
        )


def _follows_length(inspection: Inspection, group: Group, _: Spectrum) -> Iterator[str]:
    if group.spec is None:
        return
    if group.part("LongRoPE") is not None:
        yield (
            f"up to {group.trained.value} tokens the short list holds, beyond it the long one; keys cached under one "
            "do not fit the other."
        )
    elif group.spec.needs_length:
        yield "the frequencies follow the length at hand; keys cached at one length do not fit another."
    elif group.factor != 1:
        yield f"the scaling is static: it holds at every length, below {group.trained.value} tokens too."


def _unseen(inspection: Inspection, group: Group, spectrum: Spectrum) -> Iterator[str]:
    new = np.flatnonzero(spectrum.unseen > 0)
    if len(new) == 0:
        return
    worst = int(np.argmax(spectrum.unseen))
    yield (
        f"within {spectrum.length} tokens {len(new)} of {spectrum.pairs} pairs ({ranges(new.tolist())}) reach phases "
        f"that {spectrum.trained_length} tokens of training never showed, pair {worst} {spectrum.unseen[worst]:.2f} of "
        "a turn of them: extrapolation, unless the model was trained further on longer text."
    )


def _base(inspection: Inspection, group: Group, spectrum: Spectrum) -> Iterator[str]:
    if group.spec is None or not np.all(spectrum.stretch == 1):
        return
    window = inspection.raw.get("sliding_window") if group.name == LOCAL else spectrum.length
    if not isinstance(window, int):
        return
    reach = min(window, spectrum.length)
    bound = base_bound(reach)
    if group.spec.theta < bound:
        yield (
            f"theta {number(group.spec.theta)} is below {number(bound)}, about the least base with which plain RoPE "
            f"prefers similar tokens at every distance up to {reach} (a fit for heads of 128, arXiv 2405.14591)."
        )


def _partial(inspection: Inspection, group: Group, _: Spectrum) -> Iterator[str]:
    spec = group.spec
    if spec is not None and spec.head_dim is not None and spec.rotary_dim < spec.head_dim:
        yield f"{spec.rotary_dim} of the {spec.head_dim} channels of a head turn; the others pass through unscaled."


def _edited(group: Group, **changes: Any) -> Group | None:
    """The group with other settings of its method, None where the method does not have them."""
    spec = group.spec
    if spec is None:
        return None
    found = [part for part in parts(spec.transform) if all(hasattr(part, name) for name in changes)]
    if not found:
        return None
    edited = (
        dataclasses.replace(part, **changes) if part is found[0] else part  # type: ignore[type-var]
        for part in parts(spec.transform)
    )
    trained = Stated(int(changes.get("original_length", group.trained.value)), group.trained.origin)
    return dataclasses.replace(group, spec=dataclasses.replace(spec, transform=chain(*edited)), trained=trained)


def _difference(changed: Group, spectrum: Spectrum) -> str:
    """How the frequencies of an edited group differ from those at hand."""
    ratio = stretch(spectrum.schedule, spectrum_at(changed, spectrum.length).schedule)
    differ = np.flatnonzero(np.abs(ratio - 1) > ALIKE)
    if len(differ) == 0:
        return "no frequency would change"
    most = most_changed(ratio)
    pairs = f"{len(differ)} of {spectrum.pairs} pairs ({ranges(differ.tolist())})"
    return f"{pairs} would turn at another speed, {said(most)} {number(ratio[most[0]])} times as fast"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else str(value)

"""Everything as JSON with stable keys."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rope_jax.experiment.inspect.compare import difference, matched
from rope_jax.experiment.inspect.findings import findings
from rope_jax.experiment.inspect.reading import Group, Inspection, Stated, lengths_for
from rope_jax.experiment.inspect.settings import settings
from rope_jax.experiment.inspect.spectrum import Spectrum, spectrum_at

FORM = 1  # grows when a key changes its meaning


def as_json(inspections: Sequence[Inspection], asked: Sequence[int] | None = None) -> dict[str, Any]:
    """All that the tables show, and every pair.

    Returns:
      {"form", "configs": [...], "differences": [...]}: lengths in tokens, speeds in radians per token, phases in
      turns; null stands for an infinite number (a wave that never ends, a length without limit) and for what is
      absent. Differences are there for two configurations: the second against the first.
    """
    lengths = lengths_for(asked, *inspections)
    differences: list[dict[str, Any]] = []
    if len(inspections) == 2:
        for ours, theirs in matched(*inspections):
            if ours is None or theirs is None or not (ours.turns and theirs.turns):
                continue
            differences += [_difference(ours, theirs, length) for length in lengths]
    return {"form": FORM, "configs": [_config(one, asked, lengths) for one in inspections], "differences": differences}


def _config(inspection: Inspection, asked: Sequence[int] | None, lengths: Sequence[int]) -> dict[str, Any]:
    return {
        "source": inspection.source,
        "model_type": inspection.raw.get("model_type"),
        "layers": len(inspection.rope.layer_groups),
        "claimed_length": _stated(inspection.claimed),
        "warnings": list(inspection.warnings),
        "groups": {group.name: _group(inspection, group, asked, lengths) for group in inspection.groups},
    }


def _group(inspection: Inspection, group: Group, asked: Sequence[int] | None, lengths: Sequence[int]) -> dict[str, Any]:
    spectra = tuple(spectrum_at(group, length) for length in lengths) if group.turns else ()
    return {
        "layers": list(group.layers),
        "turns": group.turns,
        "trained_length": _stated(group.trained),
        "target_length": group.target_length,
        "needs_length": group.spec is not None and group.spec.needs_length,
        "settings": {
            one.name: {"value": _plain(one.value), "origin": one.origin} for one in settings(inspection, group, spectra)
        },
        "findings": list(findings(inspection, group, spectrum_at(group, lengths_for(asked, inspection)[-1])))
        if spectra
        else [],
        "spectra": [_spectrum(spectrum) for spectrum in spectra],
    }


def _spectrum(spectrum: Spectrum) -> dict[str, Any]:
    similarity, at_least = spectrum.similarity_length()
    return {
        "length": spectrum.length,
        "attention_scale": spectrum.attention_scale,
        "logit_scale": spectrum.logit_scale,
        "effective_length": _plain(spectrum.effective_length),
        "critical_dimension": spectrum.critical_dimension,
        "similarity_length": similarity,
        "similarity_length_is_at_least": at_least,
        "never_turning": list(spectrum.never_turning),
        "bands": {word: list(pairs) for word, pairs in spectrum.bands.items()},
        "pairs": {
            "inv_freq": _plain(spectrum.schedule.float64()),
            "plain_inv_freq": _plain(spectrum.plain.float64()),
            "wavelength": _plain(spectrum.wavelength),
            "plain_wavelength": _plain(spectrum.plain_wavelength),
            "turns": _plain(spectrum.turns),
            "stretch": _plain(spectrum.stretch),
            "verdict": _plain(spectrum.verdict),
            "unseen": _plain(spectrum.unseen),
        },
    }


def _difference(ours: Group, theirs: Group, length: int) -> dict[str, Any]:
    found = difference(spectrum_at(ours, length), spectrum_at(theirs, length))
    entry: dict[str, Any] = {"groups": [ours.name, theirs.name], "length": length, "comparable": found is not None}
    if found is not None:
        entry["pairs"] = list(found.pairs)
        entry["inv_freq_ratio"] = _plain(found.ratio)
        entry["turns_apart"] = _plain(found.apart)
        entry["logit_ratio"] = found.second.logit_scale / found.first.logit_scale
    return entry


def _stated(value: Stated | None) -> dict[str, Any] | None:
    return None if value is None else {"value": value.value, "origin": value.origin}


def _plain(value: Any) -> Any:
    """JSON values; what is not finite has no number there."""
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value.tolist()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

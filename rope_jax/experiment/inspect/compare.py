"""Two configurations side by side: which settings and which pairs differ, and by how much."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rope_jax.diagnostics import stretch
from rope_jax.experiment.inspect.reading import Group, Inspection
from rope_jax.experiment.inspect.spectrum import Spectrum, most_changed, number, ranges

# Relative differences of frequencies below this are rounding.
ALIKE = 1e-6


@dataclass(frozen=True, eq=False)
class Difference:
    """The second spectrum against the first, at one length.

    `ratio` is [pairs]: how many times as fast the second turns. `apart` is [pairs] turns: how far the two are from
    each other at the end of the length.
    """

    first: Spectrum
    second: Spectrum
    ratio: np.ndarray
    apart: np.ndarray

    @property
    def pairs(self) -> tuple[int, ...]:
        """The pairs that differ."""
        return tuple(int(i) for i in np.flatnonzero(~(np.abs(self.ratio - 1) <= ALIKE)))

    @property
    def most(self) -> tuple[int, ...]:
        """The pairs whose speed differs most."""
        return most_changed(self.ratio)


def said(pairs: Sequence[int]) -> str:
    """Pairs in a sentence: pair 3, pairs 18-31."""
    return f"pair{'s' * (len(pairs) > 1)} {ranges(pairs)}"


def difference(first: Spectrum, second: Spectrum) -> Difference | None:
    """The difference of two spectra, None where they have unlike widths."""
    if first.pairs != second.pairs:
        return None
    with np.errstate(divide="ignore"):
        ratio = 1 / stretch(second.schedule, first.schedule)
    # stretch is first / second; a pair that only the second turns has ratio infinity.
    apart = first.length * np.abs(second.schedule.float64() - first.schedule.float64()) / (2 * np.pi)
    return Difference(first, second, ratio, apart)


def matched(first: Inspection, second: Inspection) -> list[tuple[Group | None, Group | None]]:
    """Groups that belong together: of the same name; a lone group of one configuration goes with each of the other."""
    ours, theirs = {g.name: g for g in first.groups}, {g.name: g for g in second.groups}
    if not set(ours) & set(theirs) and 1 in (len(ours), len(theirs)):
        return [(a, b) for a in first.groups for b in second.groups]
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [(ours.get(name), theirs.get(name)) for name in names]


def sentences(differences: Sequence[Difference]) -> list[str]:
    """What the differences come to, a line for each length."""
    found = []
    for one in differences:
        length = one.first.length
        if not one.pairs:
            found.append(f"no pair differs at length {length:,}.")
        else:
            most, far = one.most, int(np.argmax(one.apart))
            found.append(
                f"{len(one.pairs)} of {one.first.pairs} pairs differ ({ranges(one.pairs)}), most {said(most)}, where B "
                f"turns {number(one.ratio[most[0]])} times as fast as A; after {length:,} tokens the two are up to "
                f"{number(one.apart[far])} turns apart (pair {far})."
            )
        if one.first.attention_scale != one.second.attention_scale:
            logits = one.second.logit_scale / one.first.logit_scale
            found.append(f"logits of rotated channels are {number(logits)} times as large in B.")
    return found

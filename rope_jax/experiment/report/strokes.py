"""How each method is drawn: its class gives the colour, whatever else is in the sweep and in which order."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from rope_jax.experiment.report.style import Theme

Curve = tuple[str, float | None]
MARKERS, DASHES = "osD^vPX", ("-", "--", ":")
# One colour of the palette each; methods of other names get one by their name.
FAMILIES = (
    ("PositionInterpolation", "ClippedRoPE"),
    ("YaRN", "DynamicYaRN"),
    ("NTKAware", "DynamicNTK"),
    ("NTKByParts", "Proportional"),
    ("Llama3", "Rescale"),
    ("LongRoPE", "Resonance"),
    ("BaseChange", "Drop", "AttentionTemperature"),
)


@dataclass(frozen=True)
class Stroke:
    """How a method is drawn, the same in every figure."""

    colour: str
    marker: str
    dashes: str


def strokes(curves: Sequence[Curve], plain: Sequence[Curve], theme: Theme) -> dict[Curve, Stroke]:
    """A colour, marker and dash for every curve: ink for the plain ones, the colour of their family for the others.

    Args:
        curves: (method, fixed factor) of all that a page draws, in any order, repeated or not.
        plain: those of them that leave the frequencies as they are.
        theme: the paper.
    """
    found = dict.fromkeys(plain, Stroke(theme.ink, "o", "-"))
    families: dict[int, list[Curve]] = {}
    for curve in sorted(set(curves) - set(found), key=_simplest_first):
        families.setdefault(family(curve[0]), []).append(curve)
    for index, members in families.items():
        for place, curve in enumerate(members):
            marker = MARKERS[(index + place) % len(MARKERS)]
            found[curve] = Stroke(theme.palette[index], marker, DASHES[place % len(DASHES)])
    return found


def family(method: str) -> int:
    """Which colour of the palette a method has: that of its class, a chain that of its first class."""
    name = re.sub(r"\(.*", "", method.removeprefix("chain("))
    known = next((index for index, names in enumerate(FAMILIES) if name in names), None)
    return zlib.crc32(name.encode()) % len(FAMILIES) if known is None else known


def _simplest_first(curve: Curve) -> tuple[bool, str, float]:
    method, factor = curve
    return method.startswith("chain("), method, factor or 0.0

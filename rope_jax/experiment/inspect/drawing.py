"""The figure: the wave and the stretch of every pair, beside the plain ones and the lengths that matter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from rope_jax.experiment.inspect.compare import matched
from rope_jax.experiment.inspect.reading import Group, Inspection, lengths_for
from rope_jax.experiment.inspect.spectrum import Spectrum, number, spectrum_at
from rope_jax.experiment.inspect.terminal import spectra_of
from rope_jax.experiment.report.labels import spread_out
from rope_jax.experiment.report.style import LIGHT, SMALL, TEXT, Theme, name_axes, new_figure, png, title
from rope_jax.experiment.report.words import counted

HEIGHT, WIDTH, NARROW = 7.2, 7.6, 5.6  # inches; of one column of panels, and of each of several
LINE = 0.06  # of the height of a panel: a line of type
# Shape says the verdict, so that it survives a printer without colours.
MARKERS = MappingProxyType({"kept": "o", "blended": "D", "interpolated": "s", "faster": "^", "removed": "x"})
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))


@dataclass(frozen=True, eq=False)
class Curve:
    """One spectrum as it is drawn: its name, and its colour, or None where the verdicts have the colours."""

    name: str
    spectrum: Spectrum
    colour: str | None
    dashes: Any
    filled: bool


def draw_spectra(inspections: Sequence[Inspection], asked: Sequence[int] | None = None) -> bytes:
    """A PNG of one configuration, or of two over each other: a column for every group of layers.

    Args:
      inspections: one or two.
      asked: the lengths to evaluate them at; two configurations are compared at the longest.

    Raises:
      ValueError: no layers that turn.
    """
    theme, columns = LIGHT, _columns(inspections, lengths_for(asked, *inspections), LIGHT)
    if not columns:
        raise ValueError("`config` must have layers that turn to draw a figure of; got none.")
    width = WIDTH if len(columns) == 1 else NARROW * len(columns)
    figure, axes = new_figure(theme, 2, len(columns), size=(width, HEIGHT))
    for place, (heading, curves, marks) in enumerate(columns):
        above, below = axes[0, place], axes[1, place]
        _shade(above, curves, theme)
        _waves(above, curves, marks, theme)
        title(above, heading, theme, room=60 if len(columns) == 1 else 46)
        _shade(below, curves, theme, named=False)
        _stretches(below, curves, theme)
    handles = _legend([curve for _, curves, _ in columns for curve in curves], theme)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=SMALL,
        labelcolor=theme.ink,
    )  # fmt: skip
    return png(figure)


Column = tuple[str, list[Curve], dict[str, float]]


def _columns(inspections: Sequence[Inspection], lengths: Sequence[int], theme: Theme) -> list[Column]:
    """Heading, curves, and named lengths of every group."""
    found: list[Column] = []
    if len(inspections) == 1:
        (one,) = inspections
        for group in one.turning:
            spectra = spectra_of(group, lengths)
            curves = [
                Curve(f"at {s.length:,}" if len(spectra) > 1 else "", s, None, DASHES[i % len(DASHES)], i == 0)
                for i, s in enumerate(spectra)
            ]
            found.append((_heading(one, group), curves, _marks([(one, group, "")])))
        return found
    for ours, theirs in matched(*inspections):
        sides = [
            (one, group, label)
            for one, group, label in zip(inspections, (ours, theirs), "AB", strict=True)
            if group is not None and group.turns
        ]
        curves = []
        for one, group, label in sides:
            colour, dashes = (theme.palette[0], DASHES[0]) if label == "A" else (theme.palette[1], DASHES[1])
            curves.append(Curve(_called(one, label), spectrum_at(group, lengths[-1]), colour, dashes, label == "A"))
        if sides:
            names = list(dict.fromkeys(group.name for _, group, _ in sides))
            found.append((f"layer group {' and '.join(names)}", curves, _marks(sides)))
    return found


def _waves(axes: Any, curves: Sequence[Curve], marks: dict[str, float], theme: Theme) -> None:
    """Wavelengths on the left scale, turns within the trained length on the right one."""
    plain = max(curves, key=lambda curve: curve.spectrum.pairs).spectrum
    axes.plot(plain.plain_wavelength, color=theme.quiet, linewidth=6, alpha=0.3, solid_capstyle="round", zorder=1.7)
    for curve in curves:
        _line(axes, curve.spectrum.wavelength, curve, theme)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, 3 * max(marks.values())))
    _name_lengths(axes, marks, theme)
    trained = curves[0].spectrum.trained_length
    name_axes(axes, theme, "", "wavelength (tokens per turn)")
    right = axes.secondary_yaxis(
        "right", functions=(lambda y: trained / _positive(y), lambda y: trained / _positive(y))
    )
    whose = f"{curves[0].name[0]}'s " if len({curve.spectrum.trained_length for curve in curves}) > 1 else ""
    right.set_ylabel(f"turns within {whose}{trained:,} tokens", color=theme.ink, fontsize=TEXT)
    right.tick_params(colors=theme.quiet, labelcolor=theme.ink, labelsize=SMALL)
    right.yaxis.set_minor_locator(NullLocator())
    right.spines["right"].set_color(theme.quiet)


def _name_lengths(axes: Any, marks: dict[str, float], theme: Theme) -> None:
    """A line at every length that matters, named at its left end, the names moved apart where they would touch."""
    bottom, top = (math.log(limit) for limit in axes.get_ylim())
    heights = np.array([(math.log(length) - bottom) / (top - bottom) for length in marks.values()])
    for length in marks.values():
        axes.axhline(length, color=theme.ink, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1.5)
    for name, height in zip(marks, spread_out(heights, np.full(len(heights), LINE)), strict=True):
        axes.annotate(
            name, (0.0, height), (6, 0), xycoords="axes fraction", textcoords="offset points", va="center",
            fontsize=SMALL - 1, color=theme.ink, zorder=1.6,
            bbox={"facecolor": theme.paper, "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip


def _stretches(axes: Any, curves: Sequence[Curve], theme: Theme) -> None:
    """How much longer every wave has become."""
    axes.axhline(1.0, color=theme.quiet, linewidth=6, alpha=0.3, zorder=1)
    for curve in curves:
        _line(axes, curve.spectrum.stretch, curve, theme)
    axes.set_yscale("log", base=2)
    finite = np.concatenate([curve.spectrum.stretch[np.isfinite(curve.spectrum.stretch)] for curve in curves])
    low, high = min(0, math.floor(math.log2(finite.min()) + 1e-9)), math.ceil(math.log2(finite.max()) - 1e-9)
    axes.set_ylim(2 ** (low - 0.3), 2 ** (max(high, low + 2) + 0.3))
    step = max(1, (high - low) // 6)
    axes.yaxis.set_major_locator(FixedLocator([2.0**k for k in range(low, max(high, low + 2) + 1, step)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    name_axes(axes, theme, "pair", "stretch (times the plain wave)")


def _line(axes: Any, values: np.ndarray, curve: Curve, theme: Theme) -> None:
    """A curve, with a marker for the verdict on every pair; removed pairs stand on the upper edge."""
    height = np.where(np.isfinite(values), values, np.nan)
    axes.plot(height, color=curve.colour or theme.quiet, linewidth=1.4, linestyle=curve.dashes, zorder=2)
    size = 5.5 if curve.spectrum.pairs <= 64 else 4.0
    for word, pairs in curve.spectrum.bands.items():
        colour = curve.colour or _colours(theme)[word]
        places = {"transform": axes.get_xaxis_transform(), "clip_on": False} if word == "removed" else {}
        heights = np.full(len(pairs), 0.985) if word == "removed" else height[list(pairs)]
        axes.plot(
            pairs, heights, linestyle="none", marker=MARKERS[word], markersize=size, color=colour, zorder=3,
            markerfacecolor=colour if curve.filled else theme.paper, markeredgewidth=1.2, **places,
        )  # fmt: skip


def _shade(axes: Any, curves: Sequence[Curve], theme: Theme, *, named: bool = True) -> None:
    """Grey behind the pairs that never turned once in training; of two configurations, from the later one on."""
    starts = [curve.spectrum.never_turning[0] for curve in curves if curve.spectrum.never_turning]
    pairs = max(curve.spectrum.pairs for curve in curves)
    axes.set_xlim(-0.8, pairs - 0.2)
    if not starts:
        return
    axes.axvspan(max(starts) - 0.5, pairs - 0.2, color=theme.grid, alpha=0.6, zorder=0, linewidth=0)
    if not named:
        return
    axes.annotate(
        "less than one\nturn in training", (pairs - 0.2, 0.0), (-5, 5), xycoords=("data", "axes fraction"),
        textcoords="offset points", ha="right", fontsize=SMALL - 1, color=theme.quiet,
    )  # fmt: skip


def _legend(curves: Sequence[Curve], theme: Theme) -> list[Line2D]:
    """Plain, the curves where they have names, and the shapes of the verdicts that occur."""
    found = [Line2D([], [], color=theme.quiet, linewidth=6, alpha=0.3, label="plain")]
    named = {curve.name: curve for curve in curves if curve.name}
    found += [
        Line2D([], [], color=curve.colour or theme.quiet, linestyle=curve.dashes, linewidth=1.8, label=name)
        for name, curve in named.items()
    ]
    words = dict.fromkeys(word for word in MARKERS if any(word in curve.spectrum.bands for curve in curves))
    coloured = any(curve.colour is None for curve in curves)
    for word in words:
        colour = _colours(theme)[word] if coloured else theme.quiet
        found.append(Line2D([], [], color=colour, marker=MARKERS[word], linestyle="none", label=word))
    return found


def _colours(theme: Theme) -> dict[str, str]:
    """One colour for each verdict; they differ in lightness as well."""
    blue, orange, _, purple, *_ = theme.palette
    return {"kept": theme.ink, "blended": orange, "interpolated": blue, "faster": purple, "removed": theme.quiet}


def _marks(sides: Sequence[tuple[Inspection, Group, str]]) -> dict[str, float]:
    """The lengths to draw, with their names; equal ones share a line."""
    lengths: dict[float, list[str]] = {}
    for inspection, group, label in sides:
        of = f" ({label})" if len(sides) > 1 else ""
        lengths.setdefault(group.trained.value, []).append(f"trained{of}")
        if group.factor not in (None, 1.0) and group.target_length:
            lengths.setdefault(group.target_length, []).append(f"factor x trained{of}")
        if inspection.claimed is not None:
            lengths.setdefault(inspection.claimed.value, []).append(f"claimed{of}")
    return {f"{', '.join(_joined(names))} {length:,}": length for length, names in sorted(lengths.items())}


def _joined(names: Sequence[str]) -> list[str]:
    """Both sides say it: then it needs no side."""
    bare = [name.removesuffix(" (A)").removesuffix(" (B)") for name in names]
    found = [name if bare.count(plain) == 1 else plain for name, plain in zip(names, bare, strict=True)]
    return list(dict.fromkeys(found))


def _heading(inspection: Inspection, group: Group) -> str:
    return f"{inspection.short_name}: {group.name}, {counted(len(group.layers), 'layer')}"


def _called(inspection: Inspection, label: str) -> str:
    return f"{label}: {inspection.short_name}"


def _positive(value: Any) -> Any:
    """Values of a log axis; matplotlib also asks for 0 while it lays the axis out."""
    return np.maximum(value, 1e-12)

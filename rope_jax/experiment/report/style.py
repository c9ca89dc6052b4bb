"""One look for all figures, on light and on dark paper, without pyplot and without global settings."""

import io
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from rope_jax.experiment.report.words import multiple

SIZE, DPI = (7.0, 4.6), 160
TEXT, SMALL = 12.5, 11.0
Curve = tuple[str, float | None]
LONG = 22  # characters; a longer name is set smaller
MARKERS = "osD^vPX"


@dataclass(frozen=True)
class Theme:
    """Paper, ink and line colours; neighbours in the palette differ in lightness as well, for colour-blind eyes."""

    name: str
    paper: str
    ink: str
    quiet: str
    grid: str
    palette: tuple[str, ...]


LIGHT = Theme(
    "light", "#ffffff", "#14181d", "#5d6772", "#e1e5e9",
    ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b07c00", "#3a9bd9", "#7a3b10"),
)  # fmt: skip
DARK = Theme(
    "dark", "#14181d", "#eef1f4", "#9aa5b1", "#2b323a",
    ("#56b4e9", "#f0803c", "#2ec49a", "#d98cc9", "#e6b422", "#8fd0ff", "#c98b5e"),
)  # fmt: skip


@dataclass(frozen=True)
class Stroke:
    """How a method is drawn, the same in every figure."""

    colour: str
    marker: str
    dashes: str


def strokes(curves: Sequence[Curve], plain: Sequence[Curve], theme: Theme) -> dict[Curve, Stroke]:
    """A colour, marker and dash for every curve: ink for the plain ones, the palette and then dashes for the others."""
    looks = itertools.product(("-", "--", ":"), zip(theme.palette, MARKERS, strict=True))
    found = dict.fromkeys(plain, Stroke(theme.ink, "o", "-"))
    others = [curve for curve in dict.fromkeys(curves) if curve not in found]
    for curve, (dashes, (colour, marker)) in zip(others, itertools.cycle(looks), strict=False):
        found[curve] = Stroke(colour, marker, dashes)
    return found


def new_figure(theme: Theme, rows: int = 1, columns: int = 1, size: tuple[float, float] = SIZE) -> tuple[Figure, Any]:
    """A figure with its Agg canvas, and its axes as an object array [rows, columns]."""
    figure = Figure(figsize=size, dpi=DPI, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        dress(one, theme)
    return figure, axes


def dress(axes: Any, theme: Theme) -> None:
    """Colours and sizes of one axes."""
    axes.set_facecolor(theme.paper)
    axes.grid(True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.quiet, labelcolor=theme.ink, labelsize=SMALL)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.quiet)


def title(axes: Any, text: str, theme: Theme, pad: float = 8.0, room: int = 60) -> None:
    """What the figure shows, from the left edge; smaller and on two lines if it has more characters than `room`."""
    size = TEXT if len(text) <= room else TEXT - 3
    text = textwrap.fill(text, round(1.25 * room), max_lines=2, placeholder=" ...")
    axes.set_title(text, loc="left", color=theme.ink, fontsize=size, fontweight="bold", pad=pad)


def name_axes(axes: Any, theme: Theme, across: str, up: str) -> None:
    """Say what the two axes are."""
    axes.set_xlabel(across, color=theme.ink, fontsize=TEXT)
    axes.set_ylabel(up, color=theme.ink, fontsize=TEXT)


def length_axis(axes: Any, lengths: Sequence[float], trained_length: int) -> None:
    """A log2 axis with every length in tokens and in multiples of the trained one."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{length:,g}\n{multiple(length, trained_length)}" for length in lengths])


def mark(axes: Any, length: int, text: str, theme: Theme) -> None:
    """A vertical line at a length, named above the axes, where no data are."""
    axes.axvline(length, color=theme.quiet, linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate(
        f"{text} {length:,}", (length, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3),
        textcoords="offset points", ha="center", va="bottom", fontsize=SMALL, color=theme.quiet,
    )  # fmt: skip


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, Stroke]], theme: Theme) -> None:
    """Name lines right of the axes, at the height where they end, moved apart where they would touch.

    Args:
        axes: with its limits and scales set.
        ends: (x, y, text, stroke) of the last point of every line.
        theme: for the ink.
    """
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # settles the limits that the transform below reads
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = [(*to_axes.transform((x, y)), text, stroke) for x, y, text, stroke in ends if np.isfinite(y)]
    placed.sort(key=lambda end: end[1])
    line = 1.3 * SMALL / 72 / (0.72 * axes.get_figure().get_size_inches()[1])
    heights = spread_out(np.array([y for _, y, _, _ in placed]), line)
    across = axes.transAxes
    for (x, y, text, stroke), height in zip(placed, heights, strict=True):
        axes.plot(
            [x, 1.05], [y, height], transform=across, color=stroke.colour, linewidth=0.9, alpha=0.7, clip_on=False
        )
        axes.plot(
            [1.05], [height], transform=across, color=stroke.colour, marker=stroke.marker, markersize=6, clip_on=False
        )
        size = SMALL if len(text) <= LONG else SMALL - 2
        axes.text(1.075, height, text, transform=across, color=theme.ink, fontsize=size, va="center")


def spread_out(heights: np.ndarray, gap: float) -> np.ndarray:
    """Ascending heights, moved as little as possible (least squares) until neighbours are `gap` apart."""
    steps = gap * np.arange(len(heights))
    pools: list[tuple[float, int]] = []
    for height in heights - steps:
        pools.append((float(height), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:  # neighbours that would cross share their mean
            (low, many), (high, more) = pools[-2:]
            pools[-2:] = [((low * many + high * more) / (many + more), many + more)]
    return np.repeat([value for value, _ in pools], [count for _, count in pools]) + steps


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes, the same for the same rows."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()

"""One look for all figures, on light and on dark paper, without pyplot and without global settings."""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from rope_jax.experiment.report.words import multiple

SIZE, DPI = (6.0, 4.4), 180
WIDE = 7.0  # inches; a grid of panels
TEXT, SMALL = 12.0, 10.5
CHARACTER = 0.62  # width of a digit, in font sizes


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
    first, _, second = text.partition("\n")
    text = textwrap.fill(first, round(1.25 * room), max_lines=2, placeholder=" ...") + (second and f"\n{second}")
    axes.set_title(text, loc="left", color=theme.ink, fontsize=size, fontweight="bold", pad=pad)


def name_axes(axes: Any, theme: Theme, across: str, up: str) -> None:
    """Say what the two axes are."""
    axes.set_xlabel(across, color=theme.ink, fontsize=TEXT)
    axes.set_ylabel(up, color=theme.ink, fontsize=TEXT)


def length_axis(axes: Any, lengths: Sequence[float], trained_length: int) -> None:
    """A log2 axis with lengths in tokens and in multiples of the trained one; those that would touch are left out."""
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    points = (
        0.55 * 72 * axes.get_figure().get_size_inches()[0] / math.log2(max(high, lengths[-1]) / min(low, lengths[0]))
    )
    labels, ends = [], [-math.inf, -math.inf]  # where the last label ends, of tokens and of multiples
    for length in lengths:
        lines = [f"{length:,g}", multiple(length, trained_length)]
        for line, text in enumerate(lines):
            middle, half = points * math.log2(length), CHARACTER * SMALL * (len(text) + 0.5) / 2
            if middle - half < ends[line]:
                lines[line] = ""
            else:
                ends[line] = middle + half
        labels.append("\n".join(lines))
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels(labels)


def mark_lengths(axes: Any, marks: Sequence[tuple[int, str]], theme: Theme) -> None:
    """Vertical lines at lengths, named above the axes, where no data are, and so that the names keep apart."""
    to_axes = axes.transData + axes.transAxes.inverted()
    for index, (length, text) in enumerate(marks):
        axes.axvline(length, color=theme.quiet, linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
        across, _ = to_axes.transform((length, axes.get_ylim()[0]))
        side, shift = ("left", -3) if across < 0.25 else ("right", 3) if index + 1 < len(marks) else ("center", 0)
        axes.annotate(
            f"{text} {length:,}", (length, 1.0), xycoords=("data", "axes fraction"), xytext=(shift, 5),
            textcoords="offset points", ha=side, va="bottom", fontsize=SMALL, color=theme.quiet,
        )  # fmt: skip


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes, the same for the same rows."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()

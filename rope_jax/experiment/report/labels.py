"""Names of lines in a column right of the axes, one size of type, on two lines at most."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.transforms import ScaledTranslation

from rope_jax.experiment.report.strokes import Stroke
from rope_jax.experiment.report.style import SMALL, Theme

COLUMN = 0.32  # of the width of a figure
MARKER, TEXT = 14, 21  # points from the axes to the marker and to the name
LINE, LINES = 1.25, 2  # height of a line in font sizes; lines of a name at most
ROOM = (-0.2, 1.12)  # of the height of the axes: names reach a little below and above
MORE = "\N{HORIZONTAL ELLIPSIS}"


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, Stroke]], theme: Theme) -> None:
    """Name lines right of the axes, at the height where they end, moved apart where they would touch.

    Args:
        axes: the only ones of their figure, with limits and scales set; they leave the column free.
        ends: (x, y, text, stroke) of the last point of every line.
        theme: for the ink.
    """
    figure = axes.get_figure()
    figure.get_layout_engine().set(rect=(0.0, 0.0, 1.0 - COLUMN, 1.0))
    width, height = 72 * figure.get_size_inches()
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # settles the limits that the transform below reads
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted(
        ((*to_axes.transform((x, y)), wrapped(text, COLUMN * width - TEXT - 2), stroke) for x, y, text, stroke in ends
         if np.isfinite(y)),
        key=lambda end: end[1],
    )  # fmt: skip
    line = LINE * SMALL / (0.72 * height)
    sizes = line * np.array([0.15 + len(lines) for _, _, lines, _ in placed])
    heights = spread_out(np.array([y for _, y, _, _ in placed]), sizes, *ROOM)
    beside = axes.transAxes + ScaledTranslation(MARKER / 72, 0, figure.dpi_scale_trans)
    for (x, y, lines, stroke), place in zip(placed, heights, strict=True):
        look = {"color": stroke.colour, "linewidth": 0.9, "alpha": 0.7}
        joint = axes.annotate(
            "", (x, y), (1.0, place), xycoords=axes.transAxes, textcoords=beside, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 0, **look},
        )  # fmt: skip
        (dot,) = axes.plot(
            [1.0], [place], transform=beside, color=stroke.colour, marker=stroke.marker, markersize=6, clip_on=False
        )
        name = axes.annotate(
            "\n".join(lines), (1.0, place), (TEXT, 0), xycoords="axes fraction", textcoords="offset points",
            color=theme.ink, fontsize=SMALL, va="center", linespacing=1.1, annotation_clip=False,
        )  # fmt: skip
        for artist in (joint, dot, name):
            artist.set_in_layout(False)


def wrapped(text: str, room: float) -> list[str]:
    """A name on at most two lines of `room` points, broken at spaces; what does not fit ends in an ellipsis."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] in ("", "+") or _width(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], " ".join(lines[LINES - 1 :])]
    return [_elided(line, room) for line in lines]


def spread_out(heights: np.ndarray, sizes: np.ndarray, bottom: float = -math.inf, top: float = math.inf) -> np.ndarray:
    """Ascending middles, moved as little as possible (least squares) until boxes of these sizes do not overlap.

    Args:
        heights: where the boxes would be.
        sizes: how high they are.
        bottom: no box reaches further down, unless they are too many for the room.
        top: no box reaches further up.
    """
    if not len(heights):
        return heights
    steps = np.concatenate([[0.0], np.cumsum((sizes[1:] + sizes[:-1]) / 2)])
    pools: list[tuple[float, int]] = []
    for height in heights - steps:
        pools.append((float(height), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:  # neighbours that would cross share their mean
            (low, many), (high, more) = pools[-2:]
            pools[-2:] = [((low * many + high * more) / (many + more), many + more)]
    moved = np.repeat([value for value, _ in pools], [count for _, count in pools])
    return np.clip(moved, bottom + sizes[0] / 2, top - steps[-1] - sizes[-1] / 2) + steps


def _elided(line: str, room: float) -> str:
    if _width(line) <= room:
        return line
    kept = next(end for end in range(len(line) - 1, 0, -1) if end == 1 or _width(line[:end] + MORE) <= room)
    return line[:kept] + MORE


def _width(text: str) -> float:
    """Points across."""
    return float(TextPath((0, 0), text, size=SMALL, prop=FontProperties()).get_extents().width) if text else 0.0

"""The two main figures: loss by position in the window, and context gain by length."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rope_jax.experiment.report.labels import label_ends
from rope_jax.experiment.report.series import Series, lengths_of
from rope_jax.experiment.report.strokes import Curve, Stroke
from rope_jax.experiment.report.style import Theme, length_axis, mark_lengths, name_axes, new_figure, title
from rope_jax.experiment.report.words import MINUS

BINS_PER_TRAINED_LENGTH = 4
GROUPS_PER_OCTAVE = 2
LINEAR = 0.1  # nats per token: gains this near to zero keep a linear scale where others are much larger
TICKS = (-5.0, -2.0, -1.0, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


def loss_by_position(
    series: Sequence[Series],
    truncated: Sequence[Series],
    styles: Mapping[Curve, Stroke],
    theme: Theme,
    heading: str,
    marks: Sequence[tuple[int, str]] = (),
) -> Figure:
    """Loss at every position of the longest window, next to what the last trained length alone gives.

    Args:
        series: the methods of one phase.
        truncated: the baselines of the same phase; the lowest is named.
        styles: how each method is drawn.
        theme: the paper.
        heading: what the figure is called.
        marks: (length, word) of vertical lines: what was trained or tuned there.
    """
    trained = series[0].trained_length
    figure, ((axes,),) = new_figure(theme)
    ends = []
    for one in truncated:
        x, y = by_octave(one.cells[-1].mean_list("by_position"), trained)
        axes.plot(x, y, color=theme.quiet, linewidth=5, alpha=0.45, solid_capstyle="round", zorder=1)
        ends.append((*_last(x, y), f"last {trained:,} alone", Stroke(theme.quiet, "_", "-")))
    ends = sorted(ends, key=lambda end: end[1])[:1]
    longest = max(lengths_of(series))
    for one in series:
        cell = one.at(longest)
        x, y = by_octave(cell.mean_list("by_position") if cell else [], trained)
        if len(x):
            _line(axes, x, y, styles[one.curve])
            ends.append((*_last(x, y), one.name, styles[one.curve]))
    multiples = [2.0**k for k in range(-2, int(math.log2(longest / trained)) + 1)]
    length_axis(axes, [trained * m for m in multiples], trained)
    mark_lengths(axes, marks, theme)
    title(axes, heading, theme, pad=22)
    name_axes(axes, theme, f"position in a window of {longest:,} tokens", "loss (nats per token)")
    label_ends(axes, ends, theme)
    return figure


def gain_by_length(
    series: Sequence[Series],
    styles: Mapping[Curve, Stroke],
    theme: Theme,
    heading: str,
    marks: Sequence[tuple[int, str]] = (),
) -> Figure:
    """Context gain at every length, with its interval; above zero the longer context is used."""
    trained = series[0].trained_length
    figure, ((axes,),) = new_figure(theme)
    axes.axhline(0.0, color=theme.quiet, linewidth=5, alpha=0.45, zorder=1)
    lengths = lengths_of(series)
    ends = [(float(lengths[-1]), 0.0, f"last {trained:,} alone", Stroke(theme.quiet, "_", "-"))]
    gains: list[float] = []
    for one in series:
        known = [(cell.length, gain.value, *gain.interval()) for cell in one.cells if (gain := cell.gain)]
        if not known:
            continue
        x, y, low, high = map(np.asarray, zip(*known, strict=True))
        style = styles[one.curve]
        _line(axes, x, y, style)
        axes.errorbar(x, y, yerr=[y - low, high - y], fmt="none", ecolor=style.colour, elinewidth=1.4, capsize=3)
        ends.append((*_last(x, y), one.name, style))
        gains.extend(y)
    if gains and min(gains) < -5 * LINEAR:
        _squeeze(axes, min(gains), max(gains))
    length_axis(axes, lengths, trained)
    mark_lengths(axes, marks, theme)
    title(axes, heading, theme, pad=22)
    name_axes(axes, theme, "length of the window (tokens)", "context gain (nats per token)")
    label_ends(axes, ends, theme)
    return figure


def by_octave(bins: Sequence[float], trained_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean position and loss of the bins that end in the same half octave; the trained length ends a half octave."""
    width = trained_length / BINS_PER_TRAINED_LENGTH
    groups: dict[int, list[int]] = {}
    for index in range(len(bins)):
        groups.setdefault(math.ceil(GROUPS_PER_OCTAVE * math.log2(index + 1)), []).append(index)
    middles = [width * (np.mean(members) + 0.5) for members in groups.values()]
    return np.array(middles), np.array([np.mean([bins[i] for i in members]) for members in groups.values()])


def _squeeze(axes: Any, lowest: float, highest: float) -> None:
    """A logarithmic scale beyond +-LINEAR, so that a collapse does not flatten the methods that hold."""
    axes.set_yscale("symlog", linthresh=LINEAR, linscale=1.0)
    ticks = [tick for tick in TICKS if 1.5 * lowest <= tick <= max(LINEAR / 2, 1.5 * highest)]
    axes.set_yticks(ticks, [f"{tick:+g}".replace("-", MINUS) if tick else "0" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())


def _line(axes: Any, x: np.ndarray, y: np.ndarray, style: Stroke) -> None:
    axes.plot(x, y, color=style.colour, marker=style.marker, linestyle=style.dashes, linewidth=2.0, markersize=5.5)


def _last(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    return (float(x[-1]), float(y[-1])) if len(x) else (math.nan, math.nan)

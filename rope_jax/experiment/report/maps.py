"""Small multiples: where in the window a passkey is found, and how far every pair turns."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rope_jax.experiment.report.series import Series, lengths_of
from rope_jax.experiment.report.strokes import Curve, Stroke
from rope_jax.experiment.report.style import SMALL, TEXT, WIDE, Theme, new_figure, title
from rope_jax.experiment.report.words import multiple

COLUMNS = 3
FOUND = LinearSegmentedColormap.from_list("found", ("#fdf3e7", "#f2b880", "#c4682a", "#5f2c0e"))


def passkey_map(series: Sequence[Series], theme: Theme, heading: str) -> Figure:
    """Accuracy by length (across) and depth of the key (down), one panel per method."""
    lengths = lengths_of(series)
    trained = series[0].trained_length
    figure, axes = _panels(len(series), theme, height=2.6)
    for index, one in enumerate(series):
        panel = axes[index]
        depths, shares = depth_grid(one, lengths)
        panel.imshow(np.ma.masked_invalid(shares), cmap=FOUND, vmin=0.0, vmax=1.0, aspect="auto")
        panel.grid(False)
        for (down, across), share in np.ndenumerate(shares):
            if math.isfinite(share):
                colour = "#ffffff" if share > 0.55 else "#14181d"
                panel.text(
                    across, down, f"{100 * share:.0f}", ha="center", va="center", fontsize=SMALL - 2, color=colour
                )
        panel.set_xticks(range(len(lengths)), [multiple(length, trained) for length in lengths])
        panel.set_yticks(range(len(depths)), [f"{100 * depth:.0f}" for depth in depths])
        title(panel, one.name, theme, room=18)
        if index % COLUMNS == 0:
            panel.set_ylabel("depth (%)", color=theme.ink, fontsize=SMALL)
        if index + COLUMNS >= len(series):
            panel.set_xlabel(f"length ({multiple(1, 1)} is {trained:,})", color=theme.ink, fontsize=SMALL)
    figure.suptitle(heading, x=0.01, ha="left", color=theme.ink, fontsize=TEXT, fontweight="bold")
    return figure


def depth_grid(series: Series, lengths: Sequence[int]) -> tuple[list[float], np.ndarray]:
    """Depths, and shares found [depth, length] averaged over seeds; nan where nothing was measured."""
    found: dict[tuple[float, int], list[float]] = {}
    for cell in series.cells:
        for row in cell.rows:
            for depth, share in row.get("by_depth") or []:
                found.setdefault((round(depth, 6), cell.length), []).append(share)
    depths = sorted({depth for depth, _ in found})
    shares = [[np.mean(found.get((depth, length), [math.nan])) for length in lengths] for depth in depths]
    return depths, np.array(shares, dtype=float).reshape(len(depths), len(lengths))


def spectrum(series: Sequence[Series], styles: Mapping[Curve, Stroke], theme: Theme, heading: str) -> Figure:
    """Turns of every pair within the trained length, for every schedule; grey is the plain one."""
    trained = series[0].trained_length
    plain = next((turns(cell.rows[0], trained) for one in series if one.plain for cell in one.cells), np.array([]))
    figure, axes = _panels(len(series), theme, height=2.5)
    for index, one in enumerate(series):
        panel = axes[index]
        if len(plain):
            panel.plot(plain, color=theme.quiet, linewidth=5, alpha=0.35)
        last = len(one.cells) - 1
        for order, cell in enumerate(one.cells):
            strength = 0.35 + 0.65 * (order / last if last else 1.0)
            drawn = turns(cell.rows[0], trained)
            if len(drawn):
                panel.plot(
                    drawn, color=styles[one.curve].colour, alpha=strength, linewidth=1.6, marker=".", markersize=4
                )
        panel.axhline(1.0, color=theme.ink, linewidth=1.0, linestyle=(0, (2, 2)))
        panel.set_yscale("log")
        panel.yaxis.set_minor_locator(NullLocator())
        title(panel, one.name, theme, room=18)
        if index % COLUMNS:
            panel.set_yticklabels([])
        else:
            panel.set_ylabel("turns", color=theme.ink, fontsize=SMALL)
        if index + COLUMNS >= len(series):
            panel.set_xlabel("pair", color=theme.ink, fontsize=SMALL)
    axes[0].annotate(
        "one turn", (1.0, 1.0), xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points",
        ha="right", va="bottom", fontsize=SMALL - 1, color=theme.quiet,
    )  # fmt: skip
    low, high = zip(*(panel.get_ylim() for panel in axes[: len(series)]), strict=True)
    for panel in axes[: len(series)]:
        panel.set_ylim(min(low), max(high))
    figure.suptitle(heading, x=0.01, ha="left", color=theme.ink, fontsize=TEXT, fontweight="bold")
    return figure


def turns(row: Mapping[str, object], trained_length: int) -> np.ndarray:
    """Turns of every pair within the trained length: inv_freq * trained_length / (2 pi); nan where it stands still."""
    inv_freq = row.get("inv_freq")
    found = np.array(inv_freq if isinstance(inv_freq, list) else [], dtype=float) * trained_length / (2 * math.pi)
    return np.where(found > 0.0, found, math.nan)


def _panels(count: int, theme: Theme, height: float) -> tuple[Figure, np.ndarray]:
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure, axes = new_figure(theme, rows, columns, size=(WIDE, 0.5 + height * rows))
    for spare in axes.flat[count:]:
        spare.set_visible(False)
    return figure, axes.flatten()

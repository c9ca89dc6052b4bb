"""Which figures a page has, drawn on light and on dark paper."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from matplotlib.figure import Figure

from rope_jax.experiment.report import curves, maps
from rope_jax.experiment.report.origin import Origin, heading
from rope_jax.experiment.report.passkeys import matching, unit
from rope_jax.experiment.report.read import Row
from rope_jax.experiment.report.series import Series, lengths_of
from rope_jax.experiment.report.strokes import Curve, Stroke, strokes
from rope_jax.experiment.report.style import DARK, LIGHT, Theme, png
from rope_jax.experiment.report.words import LEVEL

PHASES = MappingProxyType({"base": "Zero-shot", "tuned": "Fine-tuned"})


@dataclass(frozen=True)
class Drawing:
    """A figure: its file name, what it says in words, and how it is drawn on one paper."""

    name: str
    caption: str
    draw: Callable[[Theme], Figure]


@dataclass(frozen=True)
class Picture:
    """A drawn figure, as data that a page can hold."""

    caption: str
    light: str
    dark: str


def main_drawings(
    losses: Sequence[Series],
    truncated: Sequence[Series],
    training: Sequence[Row],
    phase: str,
    origin: Origin | None = None,
) -> list[Drawing]:
    """Loss by position and context gain by length of one phase; `origin` is the checkpoint that it starts from."""
    shown = [one for one in losses if one.phase == phase]
    if not shown:
        return []
    ends = [one for one in truncated if one.phase == phase]
    trained, longest = shown[0].trained_length, max(lengths_of(shown))
    title = PHASES[phase]
    tuned_on = sorted({row["length"] for row in training if row["phase"] == phase == "tuned"})
    marks = [(trained, "trained on"), *((length, "tuned on") for length in tuned_on)]

    def positions(theme: Theme) -> Figure:
        styles, words = _strokes(losses, theme), heading(origin, trained, title, "loss by position")
        return curves.loss_by_position(shown, ends, styles, theme, words, marks)

    def gains(theme: Theme) -> Figure:
        styles, words = _strokes(losses, theme), heading(origin, trained, title, "context gain by length")
        return curves.gain_by_length(shown, styles, theme, words, marks)

    return [
        Drawing(
            f"loss_by_position_{phase}",
            f"Loss at each position of a window of {longest:,} tokens (bins of a quarter of the trained length, "
            f"averaged within half octaves). The wide grey line reads only the last {trained:,} tokens: a method below "
            "it uses what is further back, a method above it is hurt by that.",
            positions,
        ),
        Drawing(
            f"context_gain_{phase}",
            f"Context gain: loss on the last {trained:,} tokens alone minus loss on the whole window, same targets at "
            f"every length; bars are {LEVEL} intervals. Above the grey line the longer context is used, below it does "
            f"harm. Where gains differ much, the scale is logarithmic beyond ±{curves.LINEAR:g}.",
            gains,
        ),
    ]


def passkey_drawings(passkeys: Sequence[Series], origin: Origin | None = None) -> list[Drawing]:
    """Where the key is found, a figure per phase."""
    found = []
    for phase, title in PHASES.items():
        shown = [one for one in passkeys if one.phase == phase and any("by_depth" in row for row in one.cells[0].rows)]
        if shown:
            caption = (
                f"Share of the key's {unit(shown)} found (%), by length of the text (across) and by where the key lies "
                f"in it (down: 0 is the start, 100 the end, next to the question). {matching(shown)}"
            )
            words = heading(origin, shown[0].trained_length, title, "keys found (%)")
            found.append(Drawing(f"passkey_{phase}", caption, partial(maps.passkey_map, shown, heading=words)))
    return found


def spectrum_drawings(measured: Sequence[Series], origin: Origin | None = None) -> list[Drawing]:
    """How far every pair turns under every schedule of the sweep."""
    shown = [one for one in measured if one.phase == "base" and one.cells[-1].rows[0].get("inv_freq")]
    if not shown:
        return []
    trained = shown[0].trained_length

    def draw(theme: Theme) -> Figure:
        whose = "" if origin is None else f"{origin['name']}: turns"
        words = f"{whose or 'Turns'} of each pair within {trained:,} tokens"
        return maps.spectrum(shown, _strokes(measured, theme), theme, words)

    caption = (
        f"Turns that each rotary pair makes within {trained:,} tokens, fastest pair left; a line per schedule, "
        "stronger for longer lengths, over the unchanged frequencies in grey. Pairs whose grey point lies under the "
        "dashed line did not complete a turn in training: a longer text shows them new angles unless the method "
        "slows them."
    )
    return [Drawing("spectrum", caption, draw)]


def draw_all(drawings: Sequence[Drawing], folder: Path) -> list[Picture]:
    """Draw each figure on both papers; the light one is also written to the folder."""
    pictures = []
    for drawing in drawings:
        light, dark = (png(drawing.draw(theme)) for theme in (LIGHT, DARK))
        folder.mkdir(exist_ok=True)
        (folder / f"{drawing.name}.png").write_bytes(light)
        pictures.append(Picture(drawing.caption, _as_data(light), _as_data(dark)))
    return pictures


def _strokes(series: Sequence[Series], theme: Theme) -> dict[Curve, Stroke]:
    """The same look for a method in every figure, whatever else is in it."""
    return strokes([one.curve for one in series], [one.curve for one in series if one.plain], theme)


def _as_data(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"

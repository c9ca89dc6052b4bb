"""Two configurations in one table, differences marked."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rope_jax.diagnostics import VERDICTS
from rope_jax.experiment.inspect.compare import Difference, difference, matched, sentences
from rope_jax.experiment.inspect.findings import findings
from rope_jax.experiment.inspect.reading import Group, Inspection, lengths_for
from rope_jax.experiment.inspect.settings import Setting, settings
from rope_jax.experiment.inspect.spectrum import Spectrum, number, ranges, spectrum_at, tokens
from rope_jax.experiment.inspect.terminal import LOOKS, PADDING, STRETCHED, heading, notes, shown, spectra_of

MARK = "\N{NOT EQUAL TO}"
DIFFERENT = "bold"


def two_configs(
    first: Inspection, second: Inspection, asked: Sequence[int] | None = None, *, whole: bool = False
) -> RenderableType:
    """The settings and spectra of two configurations side by side; lines that differ carry a mark.

    Args:
      first, second: the configurations; A and B in the tables.
      asked: the lengths to evaluate both at; by default those of both.
      whole: show every pair.
    """
    lengths = lengths_for(asked, first, second)
    lines: list[RenderableType] = [heading(first, "A  "), heading(second, "B  ")]
    for ours, theirs in matched(first, second):
        lines += _groups(first, second, ours, theirs, lengths, whole)
    for label, one in (("A", first), ("B", second)):
        facts = [
            text
            for group in one.turning
            for text in findings(one, group, spectrum_at(group, lengths_for(asked, one)[-1]))
        ]
        lines += [
            notes(f"facts about {label}", list(dict.fromkeys(facts))),
            notes(f"warnings of {label}", one.warnings),
        ]
    return Lines(*lines)


def _groups(
    first: Inspection, second: Inspection, ours: Group | None, theirs: Group | None, lengths: Sequence[int], whole: bool
) -> list[RenderableType]:
    names = [group.name if group else "none" for group in (ours, theirs)]
    title = names[0] if names[0] == names[1] else " | ".join(names)
    layers = [f"layers {ranges(group.layers)} ({len(group.layers)})" for group in (ours, theirs) if group]
    said = " | ".join(dict.fromkeys(layers))
    found: list[RenderableType] = [Text.assemble("\n", (title, "bold"), f"  {said}")]
    sides = [
        settings(one, group, spectra_of(group, lengths)) if group else ()
        for one, group in ((first, ours), (second, theirs))
    ]
    found.append(settings_table(*sides))
    if ours is None or theirs is None or not (ours.turns and theirs.turns):
        return found
    follow = any(one.spec is not None and one.spec.needs_length for one in (ours, theirs))
    known = [difference(spectrum_at(ours, n), spectrum_at(theirs, n)) for n in (lengths if follow else lengths[-1:])]
    differences = [one for one in known if one is not None]
    if not differences:
        found.append(Text("Their pairs are not the same in number, so they are not compared one by one."))
    for one in differences:
        if follow and not one.pairs:
            continue
        found += [spectrum_table(one, f"at length {one.first.length:,}" if follow else "", whole), _lengths(one)]
    return [*found, notes("differences", sentences(differences))]


def settings_table(ours: Sequence[Setting], theirs: Sequence[Setting]) -> Table:
    """Both values of every setting, and both origins where a value differs."""
    table = Table(box=SIMPLE_HEAD, padding=PADDING)
    table.add_column("")
    table.add_column("setting", no_wrap=True)
    for label in ("A", "B"):
        table.add_column(label, justify="right", overflow="fold")
    table.add_column("from", style="dim", overflow="fold")
    left, right = ({one.name: one for one in side} for side in (ours, theirs))
    for name in [*left, *(name for name in right if name not in left)]:
        a, b = left.get(name), right.get(name)
        same = a is not None and b is not None and a.value == b.value
        origins = list(dict.fromkeys(one.origin for one in (a, b) if one is not None))
        table.add_row(
            "" if same else MARK,
            Text(name),
            *(Text(one.text if one else "absent") for one in (a, b)),
            Text(" | ".join(origins)),
            style="" if same else DIFFERENT,
        )
    return table


def spectrum_table(one: Difference, title: str, whole: bool) -> Table:
    """Wavelengths, turns, stretches and verdicts of both, and how many times as fast B turns."""
    # Without edges the verdicts are whole in 80 columns.
    table = Table(
        box=SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("pair", justify="right", no_wrap=True)
    for name in ("wave", "turns", "stretch"):
        for label in ("A", "B"):
            table.add_column(f"{name}\n{label}", justify="right", no_wrap=True)
    table.add_column("verdict\nA | B", overflow="fold")
    table.add_column("speed\nB / A", justify="right")
    lengths = (f"{label} {side.trained_length:,}" for label, side in zip("AB", (one.first, one.second), strict=True))
    table.caption = f"turns within the trained length, {' and '.join(lengths)} tokens"
    table.caption_justify = "left"
    first, second, differ = one.first, one.second, set(one.pairs)
    for pair in _rows(one, whole):
        if pair is None:
            table.add_row(*([Text("\N{VERTICAL ELLIPSIS}", style="dim")] * 9))
            continue
        sides = [(x[pair], y[pair]) for x, y in zip(_columns(first), _columns(second), strict=True)]
        words = (str(first.verdict[pair]), str(second.verdict[pair]))
        table.add_row(
            f"{MARK} {pair}" if pair in differ else str(pair),
            *(number(value) for side in sides for value in side),
            Text(" | ".join(dict.fromkeys(words)), style=LOOKS[words[1]]),
            number(one.ratio[pair]) if pair in differ else "",
            style=DIFFERENT if pair in differ else "",
        )
    return table


def _rows(one: Difference, whole: bool) -> Iterator[int | None]:
    words = list(zip(one.first.verdict.tolist(), one.second.verdict.tolist(), strict=True))
    differ = set(one.pairs)
    # Where both are blended alike there is nothing to compare.
    changing = [pair in differ and any(word in STRETCHED for word in both) for pair, both in enumerate(words)]
    keys = [
        (*both, pair in differ, "" if changing[pair] else number(one.ratio[pair])) for pair, both in enumerate(words)
    ]
    return shown(keys, changing, whole)


def _columns(one: Spectrum) -> tuple[np.ndarray, ...]:
    return one.wavelength, one.turns, one.stretch


def _lengths(one: Difference) -> RenderableType:
    """What both spectra come to."""
    table = Table(box=SIMPLE_HEAD, padding=PADDING)
    for name in ("", "pairs and lengths", "A", "B"):
        table.add_column(name, justify="right" if len(name) == 1 else "left")
    sides = (one.first, one.second)
    similar = [side.similarity_length() for side in sides]
    rows = (
        ("critical dimension", [f"{side.critical_dimension} of {2 * side.pairs}" for side in sides]),
        ("effective length", [tokens(side.effective_length) for side in sides]),
        ("similarity length", [f"{'at least ' if farthest else ''}{found:,}" for found, farthest in similar]),
        *(
            (word, [f"{len(pairs)}: {ranges(pairs)}" if (pairs := side.bands.get(word)) else "none" for side in sides])
            for word in VERDICTS
            if any(word in side.bands for side in sides)
        ),
    )
    for name, (ours, theirs) in rows:
        table.add_row(MARK if ours != theirs else "", name, ours, theirs, style=DIFFERENT if ours != theirs else "")
    return table

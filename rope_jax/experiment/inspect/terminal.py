"""The tables for a person."""

import math
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rope_jax.experiment.inspect.findings import findings
from rope_jax.experiment.inspect.reading import Group, Inspection, lengths_for
from rope_jax.experiment.inspect.settings import Setting, settings
from rope_jax.experiment.inspect.spectrum import Spectrum, number, ranges, spectrum_at, tokens

SHORT, CHANGING = 2, 8  # rows that stay at either end of a run of like pairs, and where their numbers change
PADDING = (0, 1, 0, 0)
LOOKS = MappingProxyType(
    {"kept": "", "blended": "cyan", "interpolated": "yellow", "faster": "magenta", "removed": "red"}
)
STRETCHED = ("blended", "faster")  # words for pairs that each have a stretch of their own


def one_config(inspection: Inspection, asked: Sequence[int] | None = None, *, whole: bool = False) -> RenderableType:
    """Settings, spectrum and findings of every group of layers.

    Args:
      inspection: the configuration.
      asked: the lengths to evaluate it at; methods that do not read the length are shown at the longest only.
      whole: show every pair.
    """
    lengths = lengths_for(asked, inspection)
    lines: list[RenderableType] = [heading(inspection)]
    for group in inspection.groups:
        spectra = spectra_of(group, lengths)
        lines += [group_heading(group), settings_table(settings(inspection, group, spectra))]
        for spectrum in spectra:
            at = f"at length {spectrum.length:,}" if len(spectra) > 1 else ""
            lines += [spectrum_table(spectrum, at, whole), Padding(Lines(*summary(spectrum)), (0, 0, 1, 1))]
        if spectra:
            lines.append(notes("facts", findings(inspection, group, spectra[-1])))
    lines.append(notes("warnings", inspection.warnings))
    return Lines(*lines)


def spectra_of(group: Group, lengths: Sequence[int]) -> tuple[Spectrum, ...]:
    """The spectra worth showing: one for a static method."""
    if group.spec is None or not group.turns:
        return ()
    return tuple(spectrum_at(group, length) for length in (lengths if group.spec.needs_length else lengths[-1:]))


def heading(inspection: Inspection, label: str = "") -> Text:
    """What was read."""
    model, layers = inspection.raw.get("model_type", "no model type"), len(inspection.rope.layer_groups)
    return Text.assemble((f"{label}{inspection.source}", "bold"), f"  {model}, {layers} layers")


def group_heading(group: Group) -> Text:
    """The name of a group and its layers."""
    return Text.assemble("\n", (group.name, "bold"), f"  layers {ranges(group.layers)} ({len(group.layers)})")


def settings_table(lines: Sequence[Setting]) -> Table:
    """Every number with its origin."""
    table = Table(box=SIMPLE_HEAD, padding=PADDING)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", justify="right", overflow="fold")
    table.add_column("from", style="dim", overflow="fold")
    for one in lines:
        table.add_row(Text(one.name), Text(one.text), Text(one.origin))
    return table


def spectrum_table(spectrum: Spectrum, title: str, whole: bool) -> Table:
    """A row for every pair, the middles of long runs of one verdict left out."""
    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", padding=PADDING)
    table.add_column("pair", justify="right")
    heads = ("wavelength", "plain", f"turns in {spectrum.trained_length:,}", "stretch")
    for name in (*heads, f"unseen at {spectrum.length:,}"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    table.add_column("training")
    words, never = spectrum.verdict.tolist(), spectrum.never_turning
    keys = [(word, pair in never) for pair, word in enumerate(words)]
    for pair in shown(keys, [word in STRETCHED for word in words], whole):
        if pair is None:
            table.add_row(*([Text("\N{VERTICAL ELLIPSIS}", style="dim")] * 7), "")
            continue
        table.add_row(
            str(pair),
            number(spectrum.wavelength[pair]),
            number(spectrum.plain_wavelength[pair]),
            number(spectrum.turns[pair]),
            number(spectrum.stretch[pair]),
            f"{spectrum.unseen[pair]:.3f}" if spectrum.unseen[pair] else "",
            Text(words[pair], style=LOOKS[words[pair]]),
            "plain < 1 turn" if pair in never else "",
        )
    return table


def shown(keys: Sequence[Any], changing: Sequence[bool], whole: bool) -> Iterator[int | None]:
    """The pairs to show, None where some are left out.

    Args:
      keys: what makes neighbours alike; a long run of one key keeps its ends.
      changing: pairs whose numbers differ inside a run, as the blended ones do; those runs keep more.
      whole: leave nothing out.
    """
    start = 0
    while start < len(keys):
        end = next((i for i in range(start, len(keys)) if keys[i] != keys[start]), len(keys))
        ends = CHANGING if changing[start] else SHORT
        if whole or end - start <= 2 * ends + 1:
            yield from range(start, end)
        else:
            yield from (*range(start, start + ends), None, *range(end - ends, end))
        start = end


def summary(spectrum: Spectrum) -> Iterator[Text]:
    """The numbers that the whole spectrum comes to."""
    bands = (f"{len(pairs)} {word} ({ranges(pairs)})" for word, pairs in spectrum.bands.items())
    yield Text(f"pairs: {', '.join(bands)}")
    never = spectrum.never_turning
    yield Text(
        f"critical dimension: {spectrum.critical_dimension} of {2 * spectrum.pairs} channels turned more than once in "
        f"{spectrum.trained_length:,} tokens of training"
        + (f"; pairs {ranges(never)} did not turn once" if never else "; every pair did")
    )
    if math.isinf(spectrum.effective_length):
        yield Text(
            "effective length of these frequencies: no limit, every pair that turns showed all phases in training"
        )
    else:
        yield Text(
            f"effective length of these frequencies: {tokens(spectrum.effective_length)} tokens, up to which no pair "
            "leaves the phases that it showed in training"
        )
    found, at_least = spectrum.similarity_length()
    yield Text(
        f"similarity length: {'at least ' if at_least else ''}{found:,} tokens, up to which a similar key is preferred "
        "to a random one at every distance"
    )


def notes(name: str, texts: Sequence[str]) -> RenderableType:
    """Sentences as a list under a word; nothing where there are none."""
    if not texts:
        return Text("")
    table = Table.grid(padding=(0, 1))
    for text in texts:
        table.add_row("-", Text(text))
    return Lines(Text(name, style="bold"), Padding(table, (0, 0, 1, 1)))

"""The tables of results: every entry is a number of a row, or the mean of the seeds' rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rope_jax.experiment.report.passkeys import asked, interval, unit
from rope_jax.experiment.report.read import Row
from rope_jax.experiment.report.series import Cell, Series, lengths_of
from rope_jax.experiment.report.verdict import Standing
from rope_jax.experiment.report.words import (
    LEVEL,
    MINUS,
    NONE,
    SPACE,
    TIMES,
    counted,
    ends,
    extent,
    multiple,
    nats,
    percent,
    share_ends,
    short_numbers,
    signed,
    tokens,
    with_error,
)


@dataclass(frozen=True)
class Entry:
    """One entry of a table: the number, and a smaller line under it."""

    text: str
    small: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A caption, column heads and rows of entries; a row of one entry is a heading inside the table."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


def main_table(groups: Sequence[tuple[str, Sequence[Standing]]], length: int, rows: Sequence[Row]) -> Table:
    """The table of the first screen: one row per method, zero-shot and fine-tuned apart, best context gain first."""
    training = [row for row in rows if row["metric"] == "training"]
    body: list[tuple[Entry, ...]] = []
    trained = 0
    for title, standings in groups:
        if not standings:
            continue
        trained = standings[0].series.trained_length
        body += [(Entry(title, kind="heading"),), _truncated_row(standings, trained, rows)]
        body += [_main_row(one, length, training) for one in standings]
    far = multiple(length, trained or 1)
    head = (
        "method",
        f"loss at 1{TIMES}",
        f"loss at {far}",
        f"context gain at {far}",
        "effective length",
        "tokens trained",
    )
    caption = (
        f"Loss in nats per token on the same targets at every length; 1{TIMES} is {trained:,} tokens, the trained "
        f"length, and {far} is {length:,}.{_seeds(training)}"
    )
    return Table(caption, head, tuple(body))


def lengths_table(series: Sequence[Series], caption: str, entry: Callable[[Cell], Entry]) -> Table:
    """A row per method, a column per length."""
    lengths = lengths_of(series)
    trained = series[0].trained_length
    rows = [
        (
            Entry(one.name, _method(one)),
            *(entry(cell) if (cell := one.at(length)) else Entry(NONE) for length in lengths),
        )
        for one in series
    ]
    return Table(caption, ("method", *(tokens(length, trained) for length in lengths)), tuple(rows))


def perplexity(cell: Cell) -> Entry:
    """Exp of the loss, with the loss under it."""
    return Entry(f"{math.exp(cell.value):.2f}", f"loss {nats(cell.value)}")


def accuracy(cell: Cell) -> Entry:
    """Share of the key's symbols that was found, in %; under it the interval, the keys and the share of whole keys."""
    whole = cell.mean_of("whole_answers")
    small = [
        share_ends(interval(cell), f"{SPACE}to{SPACE}"),
        counted(asked(cell), "key").replace(" ", SPACE),
        f"whole{SPACE}{100 * whole:.1f}" if whole is not None else "",
        f"seeds {spread}" if (spread := _spread(cell.spread, percent)) else "",
    ]
    return Entry(f"{100 * cell.value:.1f}", "; ".join(filter(None, small)))


def short_accuracy(cell: Cell) -> Entry:
    """Share of the key's symbols that was found and on a second line its interval, in %, for narrow columns."""
    return Entry(f"{100 * cell.value:.1f}\n{share_ends(interval(cell), digits=0)}")


def passkey_caption(series: Sequence[Series]) -> str:
    """What the accuracies are, and on how many keys they rest."""
    keys = sorted({asked(cell) for one in series for cell in one.cells})
    number = " to ".join(counted(many, "key") for many in dict.fromkeys((keys[0], keys[-1])))
    return f"Share of the key's {unit(series)} found, in %, on {number} a length; below it its {LEVEL} interval."


def passkey_table(
    series: Sequence[Series],
    guess: float | None,
    training: Sequence[Row],
    entry: Callable[[Cell], Entry] = accuracy,
) -> Table:
    """Accuracy by length next to chance, and what the weights were trained on."""
    caption = f"{passkey_caption(series)} Whole: the share of whole keys."
    table = lengths_table(series, caption, entry)
    rows = [(*row, _tokens(one, training)) for row, one in zip(table.rows, series, strict=True)]
    if guess is not None:
        small = "digits at random" if unit(series) == "tokens" else f"one of {round(1 / guess)} symbols"
        name = Entry(f"guessing: {percent(guess)}", small, "yardstick")
        chance = [Entry(f"{100 * guess:.1f}") for _ in table.head[1:]]
        rows.insert(0, (name, *chance, Entry(NONE)))
    return Table(caption + _seeds(training), (*table.head, "tokens trained"), tuple(rows))


def _main_row(one: Standing, length: int, training: Sequence[Row]) -> tuple[Entry, ...]:
    series, trained = one.series, one.series.trained_length
    near, far = series.at(trained), series.at(length)
    least, most = series.effective_length or (None, None)
    gain = one.gain
    return (
        Entry(series.name, _method(series)),
        Entry(nats(one.loss_trained), _spread(near.spread, nats) if near else ""),
        Entry(nats(one.loss), _spread(far.spread, nats) if far else ""),
        Entry(with_error(gain.value, gain.stderr), _around(one), one.kind) if gain else Entry(NONE, "", one.kind),
        _reach(least, most, lengths_of([series]), trained),
        _tokens(series, training),
    )


def _around(one: Standing) -> str:
    """The interval of a gain, and its lowest and highest among the seeds."""
    seeds = _spread(one.far.gain_spread, signed) if one.far else ""
    return "; ".join(filter(None, (ends(one.gain.interval()) if one.gain else "", f"seeds {seeds}" if seeds else "")))


def _reach(least: int | None, most: int | None, lengths: Sequence[int], trained: int) -> Entry:
    """An effective length in words; 0 stands for a length below the shortest evaluated one."""
    if least is None or most is None:
        return Entry(NONE)
    if most == 0:
        return Entry(f"below {tokens(lengths[0], trained)}")
    beyond = "≥ " if most == lengths[-1] else ""
    if least == most:
        return Entry(f"{beyond}{tokens(most, trained)}")
    multiples = f"{multiple(least, trained) if least else 0} to {beyond}{multiple(most, trained)}"
    return Entry(f"between {least:,} and {beyond}{most:,}", f"{multiples}, left open by noise")


def _truncated_row(standings: Sequence[Standing], trained: int, rows: Sequence[Row]) -> tuple[Entry, ...]:
    """The yardstick: the same targets from their last trained length alone, where every method's row agrees."""
    truncated = {one.truncated for one in standings if one.truncated is not None}
    each = nats(truncated.pop()) if len(truncated) == 1 else "by method"
    phase = standings[0].series.phase
    labels = dict.fromkeys(row["label"] for row in rows if (row["metric"], row["phase"]) == ("truncated_loss", phase))
    name = Entry(f"last {trained:,} tokens alone", "; ".join(labels), "yardstick")
    return (name, Entry(NONE), Entry(each), Entry(signed(0.0).lstrip("+")), Entry(NONE), Entry(NONE))


def _tokens(series: Series, training: Sequence[Row]) -> Entry:
    """Tokens trained on in all by the weights of a series."""
    runs = [row for row in training if row["phase"] == series.phase]
    if series.published and series.phase == "base":
        return Entry("as published")
    if series.phase == "tuned":
        own = (series.tuned_method or series.method, series.tuned_factor)
        runs = [row for row in runs if (row.get("tuned_method") or row["method"], row.get("tuned_factor")) == own]
    # What a checkpoint saw before a fine-tune is not known.
    return Entry(("+ " if series.published else "") + extent(row.get("tokens") for row in runs))


def _method(series: Series) -> str:
    if series.plain:
        return "the checkpoint's own frequencies" if series.published else "plain RoPE, frequencies unchanged"
    if not series.rotary:
        return "in place of RoPE"
    said = [] if series.method in (series.name, f"{series.name}()") else [short_numbers(series.method)]
    if series.factor not in (None, 1.0) and TIMES not in series.name:
        said.append(f"factor {series.factor:g}")
    return ", ".join(said)


def _seeds(rows: Sequence[Row]) -> str:
    seeds = {row["seed"] for row in rows}
    return f" Means over {len(seeds)} seeds, with the lowest and the highest below." if len(seeds) > 1 else ""


def _spread(ends: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    low, high = map(write, ends or (0.0, 0.0))
    return "" if low == high else f"{low} to {high}" if {low[0], high[0]} & set(f"+{MINUS}") else f"{low}{NONE}{high}"

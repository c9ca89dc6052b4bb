"""Rows gathered into series: one method on one set of weights, a cell for every length, a row for every seed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType

from rope_jax.experiment.report.read import Row
from rope_jax.experiment.report.words import TIMES, short_numbers
from rope_jax.experiment.summary import Gain, combined_gain, effective_length, windows_of

PLAIN = "Identity()"
ROPE = "rope"
# What a model without rotary frequencies is called: there is one method for it, and it changes nothing.
WITHOUT_ROPE = MappingProxyType(
    {"alibi": "ALiBi", "none": "no positions", "learned": "learned positions", "sinusoidal": "sinusoidal"}
)


@dataclass(frozen=True)
class Cell:
    """One length of a series: a row per seed, averaged."""

    length: int
    rows: tuple[Row, ...]

    @property
    def value(self) -> float:
        """Mean of the value over seeds."""
        return fmean(row["value"] for row in self.rows)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Lowest and highest value among the seeds; None for one seed."""
        values = [row["value"] for row in self.rows]
        return (min(values), max(values)) if len(values) > 1 else None

    @property
    def gain(self) -> Gain | None:
        """Context gain over the seeds; None unless every row has it with its standard error and two windows or more."""
        return combined_gain(self.rows) if all(map(_has_gain, self.rows)) else None

    @property
    def gain_spread(self) -> tuple[float, float] | None:
        """Lowest and highest context gain among the seeds; None for one seed."""
        gains = [row["context_gain"] for row in self.rows if _has_gain(row)]
        return (min(gains), max(gains)) if len(gains) > 1 else None

    def mean_of(self, name: str) -> float | None:
        """Mean over seeds of another number of the rows; None unless every row has it."""
        values = [row.get(name) for row in self.rows]
        return None if None in values else fmean(float(value) for value in values if value is not None)

    def mean_list(self, name: str) -> list[float]:
        """Mean over seeds of a list of numbers, entry by entry; empty unless the rows have it in one length."""
        lists = [row.get(name) or [] for row in self.rows]
        return [fmean(entries) for entries in zip(*lists, strict=True)] if len(set(map(len, lists))) == 1 else []


@dataclass(frozen=True)
class Series:
    """One method on one set of weights, over the lengths."""

    phase: str
    method: str
    label: str
    rule: str
    factor: float | None
    tuned_method: str | None
    tuned_factor: float | None
    trained_length: int
    cells: tuple[Cell, ...]
    positional: str = ROPE
    published: bool = False
    """Whether the weights start from a checkpoint."""
    name: str = ""

    @property
    def plain(self) -> bool:
        """Whether the frequencies are those that the weights were first trained with; there are some."""
        return self.method == PLAIN and self.rotary

    @property
    def rotary(self) -> bool:
        """Whether the model has rotary frequencies at all."""
        return self.positional == ROPE

    @property
    def curve(self) -> tuple[str, float | None]:
        """What is drawn alike in every figure: the method and its fixed factor."""
        return self.method, self.factor

    @property
    def effective_length(self) -> tuple[int, int] | None:
        """Longest length up to which the whole window does no worse, at least and at most; None: unknown."""
        rows = [row for cell in self.cells for row in cell.rows]
        return effective_length(rows) if all(map(_has_gain, rows)) else None

    def at(self, length: int) -> Cell | None:
        """The cell of one length."""
        return next((cell for cell in self.cells if cell.length == length), None)


def gather(rows: Sequence[Row], metric: str) -> tuple[Series, ...]:
    """Group the rows of one metric, in the order in which methods first appear, under names that tell them apart.

    A cell in which the factor of a series with a fixed one matches the length is measured once; it is in both series.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    chosen = [row for row in rows if row["metric"] == metric]
    for row in chosen:
        groups.setdefault(_belongs(row), []).append(row)
    return _named([_series(members + _shared(members, chosen)) for members in groups.values()])


def called(label: str, positional: str, published: bool = False) -> str:
    """A method's label as a reader knows it.

    Identity is plain RoPE, a checkpoint's own RoPE, or what a model without RoPE has in its place.
    """
    if label != "Identity":
        return label
    if published:
        return "Identity (as published)"
    return "Identity (plain)" if positional == ROPE else WITHOUT_ROPE.get(positional, positional)


def positional_of(row: Row) -> str:
    """How the model of a row knows positions."""
    return str((row["config"].get("model") or {}).get("positional", ROPE))


def lengths_of(series: Sequence[Series]) -> list[int]:
    """Every length that some series has, ascending."""
    return sorted({cell.length for one in series for cell in one.cells})


def factors_in_words(series: Sequence[Series]) -> str:
    """What stands behind the names of methods, where both rules of the factor are among them."""
    rules = {one.name.partition(", ")[2] == "matched" for one in series}
    if True not in rules:
        return ""
    return f"Matched: the factor is length / trained length; {TIMES} and a number: it is that number at every length."


def _belongs(row: Row) -> tuple[object, ...]:
    fixed = row.get("factor_rule") == "fixed"
    weights = (row["phase"], row.get("tuned_method"), row.get("tuned_factor"))
    return (*weights, row["method"], row.get("factor_rule"), row["factor"] if fixed else None)


def _shared(members: list[Row], rows: Sequence[Row]) -> list[Row]:
    """Rows of the other factor rule that this series goes through as well."""
    first = members[0]
    own = {(row["length"], row["seed"]) for row in members}
    same = [
        row
        for row in rows
        if row.get("factor_rule") != first.get("factor_rule")
        and (row["length"], row["seed"]) not in own
        and all(row.get(name) == first.get(name) for name in ("phase", "tuned_method", "tuned_factor", "method"))
    ]
    if first.get("factor_rule") == "fixed":
        return [row for row in same if row["factor"] == first["factor"]]
    least = first.get("tuned_factor") or 1.0
    return [row for row in same if row["factor"] == max(least, row["length"] / row["trained_length"])]


def _series(rows: list[Row]) -> Series:
    first = rows[0]
    by_length: dict[int, list[Row]] = {}
    for row in rows:
        by_length.setdefault(row["length"], []).append(row)
    return Series(
        phase=first["phase"],
        method=first["method"],
        label=first["label"],
        rule=first.get("factor_rule") or "match",
        factor=first["factor"] if first.get("factor_rule") == "fixed" else None,
        tuned_method=first.get("tuned_method"),
        tuned_factor=first.get("tuned_factor"),
        trained_length=first["trained_length"],
        positional=positional_of(first),
        published=first.get("checkpoint") is not None,
        cells=tuple(Cell(length, tuple(by_length[length])) for length in sorted(by_length)),
    )


def _named(series: list[Series]) -> tuple[Series, ...]:
    """Give each series the shortest name that no other of its phase has."""
    return tuple(replace(one, name=_shortest(one, [s for s in series if s.phase == one.phase])) for one in series)


def _shortest(one: Series, peers: list[Series]) -> str:
    forms: tuple[Callable[[Series], str], ...] = (
        lambda s: called(s.label, s.positional, s.published) + _weights(s),
        lambda s: called(s.label, s.positional, s.published) + _factor(s) + _weights(s),
        lambda s: short_numbers(s.method) + _factor(s) + _weights(s),
        lambda s: s.method + _factor(s) + f", weights of {s.tuned_method} at {s.tuned_factor}",
    )
    for form in forms:
        if sum(form(peer) == form(one) for peer in peers) == 1:
            return form(one)
    return forms[-1](one)


def _factor(series: Series) -> str:
    return ", matched" if series.factor is None else f" {TIMES}{series.factor:g}"


def _weights(series: Series) -> str:
    """Say whose weights they are where they were not tuned with the method itself."""
    return (
        ""
        if series.tuned_method in (None, series.method)
        else f" on weights tuned with {short_numbers(series.tuned_method)}"
    )


def _has_gain(row: Row) -> bool:
    numbers = (row.get("context_gain"), row.get("context_gain_stderr"))
    return windows_of(row) > 1 and all(number is not None and math.isfinite(number) for number in numbers)

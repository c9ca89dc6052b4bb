"""Is the key still found in a longer context: one class per method, and the sentence that says so."""

import math
from collections.abc import Sequence
from types import MappingProxyType

from rope_jax.experiment.report.read import Row
from rope_jax.experiment.report.series import Cell, Series
from rope_jax.experiment.report.words import multiple, percent, share_with_error, some

KEEPS, LOSES, GUESSES = "keeps finding it", "loses some", "guesses"
UNLEARNED, UNKNOWN = "never learned it", "unknown"
KINDS = (KEEPS, LOSES, GUESSES, UNLEARNED, UNKNOWN)
MEANING = MappingProxyType(
    {
        KEEPS: "as good as at the trained length, within two standard errors",
        LOSES: "worse than at the trained length, better than chance",
        GUESSES: "no better than chance, within two standard errors",
        UNLEARNED: "no better than chance at the trained length, so longer ones say nothing",
        UNKNOWN: "this length or the trained one has no finished measurement",
    }
)


def chance(rows: Sequence[Row]) -> float | None:
    """Accuracy of guessing a token of the key, as the newest rows or their settings have it; None: they do not say."""
    for row in reversed(rows):
        if row.get("chance") is not None:
            return float(row["chance"])
    symbols = (rows[-1]["config"].get("data") or {}).get("key_symbols") if rows else None
    return 1.0 / symbols if symbols else None


def unit(series: Sequence[Series]) -> str:
    """What the key is made of."""
    return "tokens" if any(one.published for one in series) else "symbols"


def matching(series: Sequence[Series]) -> str:
    """What finding the key does not show."""
    if any(one.published for one in series):
        return "The key is the only number in the text: this is finding digits, not understanding."
    return "The key comes from an alphabet that the filler does not use: this is content matching, not reading."


def classify(here: Cell | None, trained: Cell | None, guess: float | None) -> str:
    """Name what a length does to the search for the key, by binomial standard errors of the two accuracies."""
    if here is None or trained is None:
        return UNKNOWN
    if _by_chance(trained, guess):
        return UNLEARNED
    if _by_chance(here, guess):
        return GUESSES
    doubt = math.hypot(stderr(here), stderr(trained))
    return KEEPS if here.value >= trained.value - 2 * doubt else LOSES


def classes(series: Sequence[Series], length: int, guess: float | None) -> list[tuple[str, list[tuple[str, str]]]]:
    """Class by class, best first: the methods in it and their accuracies."""
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in KINDS}
    for one in _by_accuracy(series, length):
        here, trained = one.at(length), one.at(one.trained_length)
        before = percent(trained.value if trained else None)
        text = (
            f"{share_with_error(here.value, stderr(here))}, {before} at the trained length"
            if here
            else "not measured at this length"
        )
        found[classify(here, trained, guess)].append((one.name, text))
    return [(kind, members) for kind, members in found.items() if members]


def headline(series: Sequence[Series], length: int, guess: float | None) -> tuple[str, str]:
    """The answer in two or three words, and the sentence with its numbers."""
    trained = series[0].trained_length
    known = [one for one in _by_accuracy(series, length) if one.at(length)]
    if length <= trained or not known:
        return "Not answered", f"no length beyond the {trained:,} tokens trained on has been measured yet."
    kinds = {one.name: classify(one.at(length), one.at(trained), guess) for one in known}
    if set(kinds.values()) == {UNLEARNED}:
        share = percent(max(cell.value for one in known if (cell := one.at(trained))))
        return (
            "Not answered",
            f"at the trained length it finds {share} of the key's {unit(series)}, which is no better than chance.",
        )
    keepers = [name for name, kind in kinds.items() if kind == KEEPS]
    best, plain = known[0], next((one for one in known if one.plain), None)
    words = f"at {length:,} tokens, {multiple(length, trained)} the {trained:,} it was trained on"
    numbers = f"{best.name} finds {percent(_value(best, length))} of the key's {unit(series)}"
    if plain and plain is not best:
        numbers += f", {plain.name} {percent(_value(plain, length))}"
    numbers += f", and guessing would find {percent(guess)}." if guess is not None else "."
    if keepers:
        return (
            "Yes, it still finds the key",
            f"{words}, under {some(keepers, len(known))} as often as at the trained length: {numbers}",
        )
    if kinds[best.name] == LOSES:
        every = "under every method " if len(known) > 1 else ""
        return "In part", f"{words}, {every}less often than at the trained length: {numbers}"
    none = "under no method" if len(known) > 1 else "not"
    return "No", f"{words}, {none} more often than by chance: {numbers}"


def _by_accuracy(series: Sequence[Series], length: int) -> list[Series]:
    return sorted(series, key=lambda one: -_value(one, length))


def _value(one: Series, length: int) -> float:
    cell = one.at(length)
    return cell.value if cell else -1.0


def asked(cell: Cell) -> int:
    """Keys asked for; their symbols are not independent, so a key counts once."""
    return max(1, round(sum(row.get("keys") or _keys(row) for row in cell.rows)))


def _keys(row: Row) -> float:
    symbols: float = (row.get("count") or 0) / row["config"]["data"].get("key_length", 1)
    return symbols


def _by_chance(cell: Cell, guess: float | None) -> bool:
    return guess is not None and cell.value <= guess + 2 * math.sqrt(guess * (1 - guess) / asked(cell))


def stderr(cell: Cell) -> float:
    """Binomial standard error of an accuracy, with two hits and two misses added so that 100 % has an error as well."""
    keys = asked(cell) + 4
    share = (cell.value * (keys - 4) + 2) / keys
    return math.sqrt(share * (1 - share) / keys)

"""The sentence that answers whether the key is still found, with the numbers that it rests on."""

from collections.abc import Sequence

from rope_jax.experiment.report.passkeys import (
    GUESSES,
    KEEPS,
    LOSES,
    UNLEARNED,
    by_accuracy,
    by_more_than_chance,
    classify,
    interval,
    numbers,
    sample,
    unit,
)
from rope_jax.experiment.report.series import Cell, Series
from rope_jax.experiment.report.words import LEVEL, SPACE, multiple, percent, share_ends, some


def key_headline(series: Sequence[Series], length: int, guess: float | None) -> tuple[str, str]:
    """The answer in two or three words, and the sentence with its numbers.

    Args:
        series: methods of one phase.
        length: the length compared, in tokens.
        guess: accuracy of guessing; None: not known.
    """
    trained = series[0].trained_length
    known = [(one, cell) for one in by_accuracy(series, length) if (cell := one.at(length))]
    if length <= trained or not known:
        return "Not answered", f"no length beyond the {trained:,} tokens trained on has been measured yet."
    kinds = {one.name: classify(cell, one.at(trained), guess) for one, cell in known}
    if set(kinds.values()) == {UNLEARNED}:
        best = max((cell for one, _ in known if (cell := one.at(trained))), key=lambda cell: cell.value)
        return (
            "Not answered",
            f"at the trained length it finds {_found(best, series)}, which is no better than chance.",
        )
    words = f"at {length:,} tokens, {multiple(length, trained)} the {trained:,} it was trained on"
    sentence = f"{_told(kinds, known, guess)}: {_numbers(known, series, guess)}"
    return _short(kinds, known[0][0].name), f"{words}, {sentence}"


def _short(kinds: dict[str, str], best: str) -> str:
    if KEEPS in kinds.values():
        return "Yes, it still finds the key"
    if kinds[best] == LOSES:
        return "In part"
    return "Undecided" if set(kinds.values()) - {GUESSES, UNLEARNED} else "No"


def _told(kinds: dict[str, str], known: Sequence[tuple[Series, Cell]], guess: float | None) -> str:
    """What the intervals tell, as a clause."""
    one, cell = known[0]
    every, none = ("under every method ", "under no method") if len(known) > 1 else ("", "not")
    keepers = [name for name, kind in kinds.items() if kind == KEEPS]
    if keepers:
        return f"under {some(keepers, len(known))} as often as at the trained length"
    if kinds[one.name] == LOSES:
        every = every if set(kinds.values()) <= {LOSES, GUESSES, UNLEARNED} else "under the best method "
        return f"{every}less often than at the trained length"
    if not set(kinds.values()) - {GUESSES, UNLEARNED}:
        return f"{none} more often than by chance"
    if guess is not None and not by_more_than_chance(cell, guess):
        return "these keys are too few to tell finding from guessing"
    who = "the best method" if len(known) > 1 else "it"
    return (
        f"{who} finds the key more often than by chance, but these keys are too few to tell whether as often as at the "
        "trained length"
    )


def _numbers(known: Sequence[tuple[Series, Cell]], series: Sequence[Series], guess: float | None) -> str:
    best, cell = known[0]
    said = f"{best.name} finds {_found(cell, series)}"
    plain = next(((one, cell) for one, cell in known if one.plain and one is not best), None)
    if plain:
        said += f", {plain[0].name} {numbers(plain[1])}"
    return f"{said}, and guessing would find {percent(guess)}." if guess is not None else f"{said}."


def _found(cell: Cell, series: Sequence[Series]) -> str:
    ends = f"{share_ends(interval(cell), ' to ')}{SPACE}%"
    return f"{percent(cell.value)} of the key's {unit(series)} ({LEVEL} interval {ends}, {sample(cell)})"

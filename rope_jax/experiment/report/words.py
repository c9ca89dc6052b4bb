"""Numbers as the page writes them."""

import re
from collections.abc import Iterable, Sequence

from rope_jax.experiment.intervals import CONFIDENCE, Interval

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
NONE = "\N{EN DASH}"
SPACE = "\N{NO-BREAK SPACE}"
LEVEL = f"{100 * CONFIDENCE:g}{SPACE}%"


def nats(value: float | None) -> str:
    """A loss with three decimals: 1.247."""
    return NONE if value is None else f"{value:.3f}".replace("-", MINUS)


def signed(value: float | None) -> str:
    """A difference of losses with its sign: +0.021."""
    return NONE if value is None else f"{value:+.3f}".replace("-", MINUS)


def with_error(value: float | None, stderr: float | None) -> str:
    """A difference with its standard error: +0.021 ± 0.004."""
    if value is None or stderr is None:
        return signed(value)
    return f"{signed(value)} {PLUS_MINUS} {stderr:.3f}"


def ends(interval: Interval) -> str:
    """An interval of differences: +0.013 to +0.029."""
    return f"{signed(interval.low)} to {signed(interval.high)}"


def share_ends(interval: Interval, joint: str = NONE, digits: int = 1) -> str:
    """An interval of shares, in %: 88.4–95.6."""
    return f"{100 * interval.low:.{digits}f}{joint}{100 * interval.high:.{digits}f}"


def short_numbers(text: str) -> str:
    """A method's text with its long decimals at four digits: YaRN(beta_fast=2.828)."""
    return re.sub(r"\d+\.\d{4,}(e-?\d+)?", lambda found: f"{float(found.group()):.4g}", text)


def percent(value: float | None) -> str:
    """An accuracy: 98.4 %."""
    return NONE if value is None else f"{100 * value:.1f}{SPACE}%"


def multiple(length: float, trained_length: int) -> str:
    """A length in multiples of the trained one: 4×."""
    return f"{length / trained_length:g}{TIMES}"


def tokens(length: int, trained_length: int) -> str:
    """A length both ways: 256 (4×)."""
    return f"{length:,} ({multiple(length, trained_length)})"


def quantity(number: float) -> str:
    """A large count in short: 1.23 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{SPACE}{unit}"
    return f"{number:g}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: 48 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def listing(items: Sequence[str]) -> str:
    """Names in a sentence: a, b and c; names that hold a comma are parted by semicolons."""
    joint = "; " if any("," in item for item in items) else ", "
    return joint.join(items[:-1]) + (" and " if len(items) > 1 else "") + "".join(items[-1:])


def counted(number: int, noun: str) -> str:
    """A count and its noun: 1 seed, 3 seeds."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def extent(numbers: Iterable[float | None]) -> str:
    """Counts that should agree: 1.23 M, or 1.23 M to 1.31 M."""
    known = sorted({number for number in numbers if number is not None})
    ends = [quantity(number) for number in (known[:1] + known[-1:])]
    return " to ".join(dict.fromkeys(ends)) or NONE


def some(names: Sequence[str], of: int) -> str:
    """A few names in full, many as a count: 5 of 7 methods."""
    return listing(names) if len(names) <= 3 else f"{len(names)} of {of} methods"

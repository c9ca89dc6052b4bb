"""Does the model use the longer context, or only survive it: one class per method, by the interval of its gain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rope_jax.experiment.intervals import Interval
from rope_jax.experiment.report.series import Cell, Series, lengths_of
from rope_jax.experiment.report.words import LEVEL, counted, ends, listing, nats, signed
from rope_jax.experiment.summary import ROUNDING, Gain, gain_difference, headline_length

USES, UNDECIDED, SURVIVES = "uses", "undecided", "survives"
COLLAPSES, HURT, UNKNOWN = "collapses", "is hurt", "unknown"
KINDS = (USES, UNDECIDED, SURVIVES, HURT, COLLAPSES, UNKNOWN)
MEANING = MappingProxyType(
    {
        USES: "predicts better with the whole window than with its end alone: the interval of its gain is above zero",
        UNDECIDED: "the interval of its gain holds zero, so these windows do not tell use from harm",
        SURVIVES: "predicts worse with the whole window: the interval is below zero; its loss rises by less than half "
        "of the plain rise",
        COLLAPSES: "predicts worse with the whole window, and its loss rises by at least half of the plain rise",
        HURT: "predicts worse with the whole window; there is no plain rise to measure it by",
        UNKNOWN: "this length has no finished measurement",
    }
)
PLAIN_RISE = (
    "how much the loss of the weights before any fine-tuning, with plain RoPE, rises from the trained length to the "
    "length compared; zero-shot and fine-tuned rows are both measured by it"
)


@dataclass(frozen=True)
class Standing:
    """How one series stands at the length that is compared."""

    series: Series
    kind: str
    gain: Gain | None
    near: Cell | None
    """The trained length."""
    far: Cell | None
    """The compared length."""

    @property
    def loss_trained(self) -> float | None:
        """Loss at the trained length."""
        return self.near.value if self.near else None

    @property
    def loss(self) -> float | None:
        """Loss at the compared length."""
        return self.far.value if self.far else None

    @property
    def truncated(self) -> float | None:
        """Loss of the same targets from the last trained length alone."""
        return self.far.mean_of("truncated") if self.far and self.gain else None

    @property
    def rise(self) -> float | None:
        """Loss at the compared length over that at the trained length."""
        return None if self.loss is None or self.loss_trained is None else self.loss - self.loss_trained


def classify(gain: Interval, rise: float | None, plain_rise: float | None) -> str:
    """Name what a longer context does.

    uses: low > 0; undecided: low <= 0 <= high; otherwise survives: rise < plain_rise / 2, or collapses.

    Args:
        gain: interval of the loss on the last trained length alone minus that on the whole window, nats per token.
        rise: loss of the whole window over the loss at the trained length; None: not measured.
        plain_rise: the same of plain RoPE without fine-tuning; None or not positive: no yardstick.

    Returns:
        One of "uses", "undecided", "survives", "collapses", "is hurt" (without a yardstick), "unknown" (not finite).

    Example:
        >>> classify(Interval(-0.22, -0.18), rise=0.1, plain_rise=1.2)
        'survives'
    """
    if not all(map(math.isfinite, gain)):
        return UNKNOWN
    if gain.low > ROUNDING:
        return USES
    if gain.high >= -ROUNDING:
        return UNDECIDED
    if rise is None or plain_rise is None or not plain_rise > 0.0:
        return HURT
    return SURVIVES if rise < plain_rise / 2.0 else COLLAPSES


def comparison_length(series: Sequence[Series]) -> int:
    """The length that methods are compared at: four times the trained one where evaluated, else the longest."""
    trained = series[0].trained_length
    return headline_length(lengths_of(series), trained)


def standings(series: Sequence[Series], length: int, phase: str = "base") -> tuple[Standing, ...]:
    """Every series of one phase at one length, best context gain first; the plain rise is that of the phase "base"."""
    plain = next((one for one in series if one.plain and one.phase == "base"), None)
    plain_rise = _standing(plain, length, None).rise if plain else None
    found = [_standing(one, length, plain_rise) for one in series if one.phase == phase]
    return tuple(sorted(found, key=lambda s: (s.gain is None, -(s.gain.value if s.gain else 0.0))))


def classes(group: Sequence[Standing]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Class by class, best first: the methods in it and their numbers."""
    members = {kind: [(one.series.name, numbers(one)) for one in group if one.kind == kind] for kind in KINDS}
    return [(kind, names) for kind, names in members.items() if names]


def numbers(one: Standing) -> str:
    """The gain and its interval, and the losses where the context does harm."""
    if one.gain is None:
        return "not measured at this length"
    gain = f"gain {signed(one.gain.value)} ({ends(one.gain.interval())})"
    return gain if one.kind in (USES, UNDECIDED) else f"{gain}, loss {nats(one.loss_trained)} to {nats(one.loss)}"


def sample(one: Standing) -> str:
    """What an interval rests on: 48 windows, 3 seeds."""
    if one.gain is None:
        return "no windows"
    windows = counted(one.gain.windows, "window")
    drawn = one.gain.seeds > 1 or not one.series.published or one.series.phase == "tuned"
    return f"{windows}, {counted(one.gain.seeds, 'seed')}" if drawn else windows


def not_told_apart(group: Sequence[Standing]) -> list[str]:
    """Methods whose gain may be as large as the largest: the interval of the difference does not end above zero."""
    known = [one for one in group if one.gain]
    return [one.series.name for one in known[1:] if not _beats(known[0], one)]


def remark(group: Sequence[Standing]) -> str:
    """A line under the classes: what the brackets are, and which methods are not told apart from the best."""
    known = [one for one in group if one.gain]
    if not known:
        return ""
    said = f"In brackets the {LEVEL} interval of each gain, from {sample(known[0])}."
    close = not_told_apart(known)
    if close:
        said += (
            f" Not told apart from {known[0].series.name}, which has the largest gain: {listing(close)}. "
            f"The best of {len(known)} is favoured by chance."
        )
    return said


def _beats(best: Standing, other: Standing) -> bool:
    mine, its = (one.far.rows if one.far else () for one in (best, other))
    if not {row["seed"] for row in mine} & {row["seed"] for row in its}:
        return False
    return gain_difference(mine, its).interval().low > ROUNDING


def _standing(series: Series, length: int, plain_rise: float | None) -> Standing:
    near, far = series.at(series.trained_length), series.at(length)
    gain = far.gain if far else None
    unclassed = Standing(series, UNKNOWN, gain, near, far)
    if gain is None:
        return unclassed
    return Standing(series, classify(gain.interval(), unclassed.rise, plain_rise), gain, near, far)

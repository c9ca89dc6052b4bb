"""Does the model use the longer context, or only survive it: one class per method, and the sentence that says so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rope_jax.experiment.report.series import Series, lengths_of
from rope_jax.experiment.report.words import PLUS_MINUS, multiple, nats, some, with_error
from rope_jax.experiment.summary import headline_length

USES, EVEN, SURVIVES, COLLAPSES, HURT, UNKNOWN = "uses", "breaks even", "survives", "collapses", "is hurt", "unknown"
KINDS = (USES, EVEN, SURVIVES, HURT, COLLAPSES, UNKNOWN)
MEANING = MappingProxyType(
    {
        USES: "predicts better with the whole window than with its end alone, by more than two standard errors",
        EVEN: "the whole window and its end alone predict equally well, within two standard errors",
        SURVIVES: "predicts worse with the whole window, and its loss rises by less than half of the plain rise",
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
    loss_trained: float | None
    loss: float | None
    gain: float | None
    stderr: float | None
    truncated: float | None

    @property
    def rise(self) -> float | None:
        """Loss at the compared length over that at the trained length."""
        return _rise(self.loss, self.loss_trained)


def classify(gain: float, stderr: float, rise: float | None, plain_rise: float | None) -> str:
    """Name what a longer context does.

    uses: gain > 2 stderr; breaks even: |gain| <= 2 stderr; otherwise survives: rise < plain_rise / 2, or collapses.

    Args:
        gain: loss on the last trained length alone minus loss on the whole window, nats per token.
        stderr: standard error of the gain.
        rise: loss of the whole window over the loss at the trained length; None: not measured.
        plain_rise: the same of plain RoPE without fine-tuning; None or not positive: no yardstick.

    Returns:
        One of "uses", "breaks even", "survives", "collapses", "is hurt" (without a yardstick), "unknown" (not finite).

    Example:
        >>> classify(-0.2, 0.01, rise=0.1, plain_rise=1.2)
        'survives'
    """
    if not (math.isfinite(gain) and math.isfinite(stderr)):
        return UNKNOWN
    if gain > 2.0 * stderr:
        return USES
    if gain >= -2.0 * stderr:
        return EVEN
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
    standard = _standing(plain, length, None) if plain else None
    plain_rise = standard.rise if standard else None
    found = [_standing(one, length, plain_rise) for one in series if one.phase == phase]
    return tuple(sorted(found, key=lambda s: (s.gain is None, -(s.gain or 0.0))))


def headline(base: Sequence[Standing], tuned: Sequence[Standing], length: int, trained_length: int) -> tuple[str, str]:
    """The answer in two or three words, and the sentence with its numbers."""
    known = [one for one in (*base, *tuned) if one.kind != UNKNOWN]
    if length <= trained_length or not known:
        return "Not answered", f"no length beyond the {trained_length:,} tokens trained on has been measured yet."
    place = f"at {length:,} tokens, {multiple(length, trained_length)} the {trained_length:,} it was trained on"
    before, after = _best(base), _best(tuned)
    plain = next((one for one in base if one.series.plain and one.kind != UNKNOWN and one is not before), None)
    rest = (
        f" Without fine-tuning, {_who(before, best=len(base) > 1)} it {before.kind} ({_numbers(before)})."
        if before and tuned
        else ""
    )
    if plain:
        whose = "As published" if plain.series.published else "With plain RoPE"
        rest += f" {whose}, its frequencies unchanged, it {plain.kind} ({_numbers(plain)})."
    if before and before.kind == USES:
        return "Yes, even without fine-tuning", f"{place}, {_against(before)}.{_others(base)}{rest}"
    if after and after.kind == USES:
        return "Only after fine-tuning", f"{place}, {_against(after)}.{_others(tuned)}{rest}"
    best = max(known, key=lambda one: one.gain or 0.0)
    alone = len(known) == 1
    at_best = "" if alone else "at best "
    every = "" if alone else " under every method measured"
    short = f"No; {at_best}it {best.kind}" if best.kind in (EVEN, SURVIVES) else f"No; it {best.kind}{every}"
    within = ", which is no difference within two standard errors" if best.kind == EVEN else ""
    return short, f"{place}, {_against(best, best=not alone)}{within}.{rest}"


def classes(group: Sequence[Standing]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Class by class, best first: the methods in it and their numbers."""
    members = {kind: [(one.series.name, _numbers(one)) for one in group if one.kind == kind] for kind in KINDS}
    return [(kind, names) for kind, names in members.items() if names]


def _numbers(one: Standing) -> str:
    if one.gain is None:
        return "not measured at this length"
    gain = f"gain {with_error(one.gain, one.stderr)}"
    return gain if one.kind in (USES, EVEN) else f"{gain}, loss {nats(one.loss_trained)} to {nats(one.loss)}"


def _others(group: Sequence[Standing]) -> str:
    """Who else uses the context, besides the best."""
    others = [one.series.name for one in group if one.kind == USES][1:]
    return f" It also uses it under {some(others, len(group) - 1)}." if others else ""


def _against(one: Standing, best: bool = False) -> str:
    """What a gain means, in words and numbers."""
    gain = one.gain or 0.0
    amount = f"{abs(gain):.3f} {PLUS_MINUS} {one.stderr:.3f} nats per token {'worse' if gain < 0.0 else 'better'}"
    end = f"its last {one.series.trained_length:,} tokens alone (loss {nats(one.loss)} against {nats(one.truncated)})"
    who = ("even " if best else "") + _who(one, best)
    return f"{who} it predicts {amount} from the whole window than from {end}"


def _who(one: Standing, best: bool) -> str:
    """The method as a clause: under YaRN."""
    verb = "tuned with" if one.series.phase == "tuned" else "under" if one.series.rotary else "with"
    return f"{verb} the best method, {one.series.name}," if best else f"{verb} {one.series.name}"


def _best(group: Sequence[Standing]) -> Standing | None:
    known = [one for one in group if one.kind != UNKNOWN]
    return max(known, key=lambda one: one.gain or 0.0) if known else None


def _standing(series: Series, length: int, plain_rise: float | None) -> Standing:
    near, far = series.at(series.trained_length), series.at(length)
    loss_trained = near.value if near else None
    if far is None or far.gain is None:
        return Standing(series, UNKNOWN, loss_trained, far.value if far else None, None, None, None)
    gain, stderr = far.gain
    kind = classify(gain, stderr, _rise(far.value, loss_trained), plain_rise)
    return Standing(series, kind, loss_trained, far.value, gain, stderr, far.mean_of("truncated"))


def _rise(loss: float | None, loss_trained: float | None) -> float | None:
    return None if loss is None or loss_trained is None else loss - loss_trained

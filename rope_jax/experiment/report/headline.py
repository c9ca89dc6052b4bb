"""The sentence that answers whether the longer context is used, with the numbers that it rests on."""

from collections.abc import Sequence

from rope_jax.experiment.intervals import CONFIDENCE
from rope_jax.experiment.report.verdict import SURVIVES, UNDECIDED, UNKNOWN, USES, Standing, numbers, sample
from rope_jax.experiment.report.words import LEVEL, ends, multiple, nats, some
from rope_jax.experiment.summary import ROUNDING


def headline(base: Sequence[Standing], tuned: Sequence[Standing], length: int, trained_length: int) -> tuple[str, str]:
    """The answer in two or three words, and the sentence with its numbers.

    Yes: some method's interval lies above zero even when it is widened for the number of methods, since the best of
    many is favoured by chance. No: the interval of every method lies below zero. Else it is undecided.

    Args:
        base: the methods before any fine-tuning, best gain first.
        tuned: those after it.
        length: the length compared.
        trained_length: the trained one; both in tokens.
    """
    base, tuned = ([one for one in group if one.kind != UNKNOWN] for group in (base, tuned))
    known = [*base, *tuned]
    if length <= trained_length or not known:
        return "Not answered", f"no length beyond the {trained_length:,} tokens trained on has been measured yet."
    place = f"at {length:,} tokens, {multiple(length, trained_length)} the {trained_length:,} it was trained on"
    group = base if _proven(base) else tuned
    proven = _proven(group)
    if proven:
        short = "Only after fine-tuning"
        if group is base:
            short = "Yes, even without fine-tuning"
        elif _open(base):
            short = "Yes, after fine-tuning; undecided without it"
        return short, f"{place}, {_against(proven, len(group))}{_others(group, proven)}{_rest(base, tuned, proven)}"
    best = max(_open(known) or [one for one in known if one.kind == SURVIVES] or known, key=_gain)
    first = len(known) > 1 and best is max(known, key=_gain)
    rest = _rest(base, tuned, best)
    if _open(known):
        group = tuned if best.series.phase == "tuned" else base
        more = "More windows or seeds" if best.gain and best.gain.seeds > 1 else "More windows"
        return "Undecided", f"{place}, {_against(best, len(group), first)} {more} would narrow it.{rest}"
    return _no(best, known), f"{place}, {'even ' if first else ''}{_against(best, 1, first)}{rest}"


def _no(best: Standing, known: Sequence[Standing]) -> str:
    if len(known) == 1:
        return f"No; it {best.kind}"
    return "No; at best it survives" if best.kind == SURVIVES else f"No; it {best.kind} under every method measured"


def _open(group: Sequence[Standing]) -> list[Standing]:
    return [one for one in group if one.kind in (USES, UNDECIDED)]


def _proven(group: Sequence[Standing]) -> Standing | None:
    """The largest gain that is above zero with 95 % confidence, although it was picked from its group."""
    return next((one for one in group if one.kind == USES and _low(one, len(group)) > ROUNDING), None)


def _low(one: Standing, of: int) -> float:
    return one.gain.interval(_widened(of)).low if one.gain else 0.0


def _widened(of: int) -> float:
    """The confidence of each interval with which all of them hold together with 95 %."""
    return 1.0 - (1.0 - CONFIDENCE) / of


def _against(one: Standing, of: int, best: bool = False) -> str:
    """What a gain means, in words and numbers, and its interval, widened where it was picked from others."""
    assert one.gain is not None  # only methods that are known are described
    gain, trained = one.gain, one.series.trained_length
    amount = f"{abs(gain.value):.3f} nats per token {'worse' if gain.value < 0.0 else 'better'}"
    losses = f"its last {trained:,} tokens alone (loss {nats(one.loss)} against {nats(one.truncated)})"
    said = f"{_who(one, best)} it predicts {amount} from the whole window than from {losses}. "
    widened = of > 1 and one.kind == USES
    if one.kind == USES and not gain.interval(_widened(of)).low > ROUNDING:
        said += f"Alone that would be enough ({LEVEL} interval {ends(gain.interval())}), but the best is favoured. "
    told = f", widened because it was picked from {of} methods" if widened else ""
    interval = gain.interval(_widened(of) if widened else CONFIDENCE)
    zero = ", which holds zero" if interval.low <= ROUNDING and interval.high >= -ROUNDING else ""
    return f"{said}The {LEVEL} interval of the gain{told}: {ends(interval)}{zero} ({sample(one)})."


def _others(group: Sequence[Standing], chosen: Standing) -> str:
    """Who else uses the context, besides the best."""
    others = [one.series.name for one in group if one.kind == USES and one is not chosen]
    return f" It also uses it under {some(others, len(group) - 1)}." if others else ""


def _rest(base: Sequence[Standing], tuned: Sequence[Standing], described: Standing) -> str:
    """How the weights stand before a fine-tune and with unchanged frequencies, unless that is described already."""
    said, told = "", [described]
    before = max(base, key=_gain, default=None)
    if before and tuned and described not in base:
        said += f" Without fine-tuning, {_who(before, len(base) > 1)} it {_does(before)}."
        told.append(before)
    plain = next((one for one in base if one.series.plain and one not in told), None)
    if plain:
        whose = "As published" if plain.series.published else "With plain RoPE"
        said += f" {whose}, its frequencies unchanged, it {_does(plain)}."
    return said


def _does(one: Standing) -> str:
    return f"{'is undecided' if one.kind == UNDECIDED else one.kind} ({numbers(one)})"


def _who(one: Standing, best: bool) -> str:
    """The method as a clause: under YaRN."""
    verb = "tuned with" if one.series.phase == "tuned" else "under" if one.series.rotary else "with"
    return f"{verb} the best method, {one.series.name}," if best else f"{verb} {one.series.name}"


def _gain(one: Standing) -> float:
    return one.gain.value if one.gain else 0.0

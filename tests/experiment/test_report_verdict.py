"""Whether the longer context is used: classes at their boundaries, the answer and what it rests on."""

import pytest

from rope_jax.experiment.intervals import Interval
from rope_jax.experiment.report.headline import headline
from rope_jax.experiment.report.series import Cell, gather
from rope_jax.experiment.report.tables import main_table
from rope_jax.experiment.report.verdict import classify, not_told_apart, remark, standings
from tests.experiment.report_rows import TRAINED, loss_row, text_rows

LEVEL = "95\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize(
    ("gain", "rise", "plain_rise", "kind"),
    [
        ((0.0001, 0.04), 0.0, 1.0, "uses"),
        ((-0.0001, 0.04), 0.0, 1.0, "undecided"),
        ((-0.04, 0.0001), 0.0, 1.0, "undecided"),
        ((-1e-9, -1e-9), 0.0, 1.0, "undecided"),
        ((1e-9, 1e-9), 0.0, 1.0, "undecided"),
        ((-0.04, -0.0001), 0.499, 1.0, "survives"),
        ((-0.04, -0.0001), 0.5, 1.0, "collapses"),
        ((-0.04, -0.0001), 0.1, None, "is hurt"),
        ((-0.04, -0.0001), None, 1.0, "is hurt"),
        ((-0.04, -0.0001), 0.1, -0.2, "is hurt"),
        ((float("nan"), 0.1), 0.1, 1.0, "unknown"),
    ],
)
def test_classes_at_their_boundaries(gain, rise, plain_rise, kind):
    assert classify(Interval(*gain), rise, plain_rise) == kind


def test_seeds_are_averaged():
    rows = [loss_row(seed=seed, value=value, gain=gain) for seed, value, gain in ((0, 1.0, 0.3), (1, 1.5, -0.1))]
    cell = Cell(128, tuple(rows))
    assert (cell.value, cell.spread) == (1.25, (1.0, 1.5))
    assert cell.gain is not None
    assert (cell.gain.value, cell.gain.of_windows, cell.gain.of_seeds) == pytest.approx((0.1, 0.01, 0.2))
    assert Cell(128, (rows[0] | {"count": 16},)).gain is None


def test_the_answer_follows_the_best_method_that_is_proven():
    series = gather(text_rows(), "loss")
    base, tuned = (standings(series, 256, phase) for phase in ("base", "tuned"))
    assert headline(base, tuned, 256, TRAINED)[0] == "Yes, after fine-tuning; undecided without it"
    assert headline(base[1:], tuned, 256, TRAINED)[0] == "Only after fine-tuning"
    assert headline(base, (), 256, TRAINED)[0] == "Undecided"
    assert headline(base[1:], tuned[1:], 256, TRAINED)[0] == "Undecided"
    assert headline(base[1:], (), 256, TRAINED)[0] == "No; at best it survives"
    assert headline(base[-2:], (), 256, TRAINED)[0] == "No; it collapses under every method measured"
    assert headline(base[-1:], (), 256, TRAINED)[0] == "No; it collapses"
    assert headline(tuned, (), 256, TRAINED)[0] == "Yes, even without fine-tuning"
    assert headline(base, tuned, 64, TRAINED)[0] == "Not answered"


@pytest.mark.parametrize(
    ("windows", "short", "interval"),
    [(4, "Undecided", "−0.011 to +0.103, which holds zero"), (48, "Yes, even without fine-tuning", "+0.010 to +0.082")],
)
def test_few_windows_leave_undecided_what_many_decide(windows, short, interval):
    rows = [loss_row(length=256, gain=0.046, stderr=0.018, windows=windows)]
    said, sentence = headline(standings(gather(rows, "loss"), 256), (), 256, TRAINED)
    assert said == short
    assert f"The {LEVEL} interval of the gain: {interval} ({windows} windows, 1 seed)." in sentence


@pytest.mark.parametrize("methods", [1, 6])
def test_the_best_of_many_needs_a_wider_interval_above_zero(methods):
    # t(47) is 2.012 at 95 %, and 2.755 for six intervals that hold together with 95 %.
    names = [f"M{number}" for number in range(methods)]
    rows = [loss_row(length=256, gain=0.025, method=f"{name}()", label=name) for name in names]
    group = standings(gather(rows, "loss"), 256)
    assert {one.kind for one in group} == {"uses"}
    short, sentence = headline(group, (), 256, TRAINED)
    assert short == ("Yes, even without fine-tuning" if methods == 1 else "Undecided")
    assert ("picked from 6 methods: −0.003 to +0.053, which holds zero" in sentence) == (methods == 6)
    assert (f"Alone that would be enough ({LEVEL} interval +0.005 to +0.045)" in sentence) == (methods == 6)


def test_seeds_that_disagree_leave_it_undecided():
    def said(*gains):
        rows = [loss_row(length=256, gain=gain, seed=seed) for seed, gain in enumerate(gains)]
        return headline(standings(gather(rows, "loss"), 256), (), 256, TRAINED)

    assert said(0.3, 0.31, 0.29)[0] == "Yes, even without fine-tuning"
    short, sentence = said(0.3, 0.5, 0.1)
    assert short == "Undecided"
    assert "(48 windows, 3 seeds). More windows or seeds would narrow it." in sentence


def test_a_survivor_is_the_answer_where_the_best_gain_is_a_collapse():
    def row(label, length, loss, gain):
        return loss_row(length=length, value=loss, gain=gain, method=f"{label}()", label=label)

    numbers = [("Identity", 1.0, 2.0, -0.9), ("A", 1.0, 1.9, -0.8), ("B", 2.0, 2.1, -1.1)]
    rows = [row(name, *cell) for name, near, far, gain in numbers for cell in ((64, near, 0.0), (256, far, gain))]
    short, sentence = headline(standings(gather(rows, "loss"), 256), (), 256, TRAINED)
    assert short == "No; at best it survives"
    assert "under B it predicts 1.100 nats per token worse" in sentence


def test_methods_within_both_errors_are_not_told_apart():
    gains = {"A": -0.10, "B": -0.13, "C": -0.15, "D": -0.139}
    rows = [loss_row(length=256, gain=gain, method=f"{name}()", label=name) for name, gain in gains.items()]
    group = standings(gather(rows, "loss"), 256)
    # The errors are added: 2.012 x 0.02 = 0.0402.
    assert not_told_apart(group) == ["B", "D"]
    assert remark(group).endswith("which has the largest gain: B and D. The best of 4 is favoured by chance.")
    assert f"In brackets the {LEVEL} interval of each gain, from 48 windows, 1 seed." in remark(group)
    other = standings(gather([rows[0], rows[2] | {"seed": 1}], "loss"), 256)
    assert not_told_apart(other) == ["C"]


@pytest.mark.parametrize(
    ("gains", "text"),
    [
        ({64: 0.0, 128: -0.015, 256: -0.021, 512: 0.5}, "between 64 and 128"),
        ({64: 0.0, 128: 0.021, 256: -0.021}, "128 (2×)"),
        ({64: 0.0, 128: 0.021, 256: 0.021}, "≥ 256 (4×)"),
        ({64: 0.0, 128: 0.015, 256: 0.021}, "between 64 and ≥ 256"),
        ({64: -0.01, 128: 0.021, 256: -0.021}, "between 0 and 128"),
        ({64: -0.1, 256: -0.1}, "below 64 (1×)"),
    ],
)
def test_an_effective_length_is_stated_no_better_than_the_intervals_allow(gains, text):
    rows = [loss_row(length=length, gain=gain, stderr=0.01 if gain else 0.0) for length, gain in gains.items()]
    table = main_table([("Zero-shot", standings(gather(rows, "loss"), 256))], 256, rows)
    assert [entry.text for entry in table.rows[-1]][4] == text


def test_both_phases_are_measured_by_the_rise_of_the_plain_model_before_tuning():
    def row(phase, length, loss):
        weights = {"phase": phase, "method": "Identity()", "label": "Identity", "tuned_method": None}
        return loss_row(length=length, value=loss, gain=1.0 - loss) | weights

    rows = [row("base", 64, 1.0), row("base", 256, 2.0), row("tuned", 64, 1.0), row("tuned", 256, 1.4)]
    series = gather(rows, "loss")
    assert [[one.kind for one in standings(series, 256, phase)] for phase in ("base", "tuned")] == [
        ["collapses"],
        ["survives"],
    ]
    assert [one.kind for one in standings(series[1:], 256, "tuned")] == ["is hurt"]


@pytest.mark.parametrize(
    ("positional", "name", "clause"),
    [
        ("rope", "Identity (plain)", "under Identity (plain) it"),
        ("alibi", "ALiBi", "with ALiBi it"),
        ("none", "no positions", "with no positions it"),
        ("learned", "learned positions", "with learned positions it"),
        ("sinusoidal", "sinusoidal", "with sinusoidal it"),
    ],
)
def test_identity_is_called_by_what_the_model_knows_positions_with(positional, name, clause):
    row = loss_row(length=256, gain=-0.5, method="Identity()", label="Identity")
    row["config"] = row["config"] | {"model": row["config"]["model"] | {"positional": positional}}
    (series,) = gather([row], "loss")
    assert (series.name, series.plain) == (name, positional == "rope")
    short, sentence = headline(standings([series], 256), (), 256, TRAINED)
    assert short == "No; it is hurt"
    assert clause in sentence and "best method" not in sentence

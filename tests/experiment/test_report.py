"""What the report makes of rows: classes at their boundaries, means over seeds, the effective length, refusals."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rope_jax.experiment.report import ResultsError, terminal_table, write_report
from rope_jax.experiment.report.passkeys import classify as classify_keys
from rope_jax.experiment.report.passkeys import stderr
from rope_jax.experiment.report.read import read_run, settle
from rope_jax.experiment.report.series import Cell, gather
from rope_jax.experiment.report.tables import main_table
from rope_jax.experiment.report.verdict import classify, comparison_length, headline, standings
from rope_jax.experiment.report.words import short_numbers
from tests.experiment.report_rows import TRAINED, passkey_rows, text_rows, write_rows

ROOT = Path(__file__).parents[2]
MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize(
    ("gain", "rise", "plain_rise", "kind"),
    [
        (0.0201, 0.0, 1.0, "uses"),
        (0.02, 0.0, 1.0, "breaks even"),
        (-0.02, 0.0, 1.0, "breaks even"),
        (-0.0201, 0.499, 1.0, "survives"),
        (-0.0201, 0.5, 1.0, "collapses"),
        (-0.0201, 0.1, None, "is hurt"),
        (-0.0201, None, 1.0, "is hurt"),
        (-0.0201, 0.1, -0.2, "is hurt"),
        (float("nan"), 0.1, 1.0, "unknown"),
    ],
)
def test_classes_at_their_boundaries(gain, rise, plain_rise, kind):
    assert classify(gain, 0.01, rise, plain_rise) == kind


def test_seeds_are_averaged_and_their_errors_combined():
    rows = [_loss(seed=seed, value=value, gain=gain) for seed, value, gain in ((0, 1.0, 0.3), (1, 1.5, -0.1))]
    cell = Cell(128, tuple(rows))
    assert (cell.value, cell.spread) == (1.25, (1.0, 1.5))
    assert cell.gain == pytest.approx((0.1, np.sqrt(0.01**2 + 0.4**2 / 2 / 2)))


def test_the_effective_length_ends_at_the_first_length_that_is_hurt():
    gains = {64: 0.0, 128: -0.02, 256: -0.021, 512: 0.5}
    (series,) = gather([_loss(length=length, gain=gain) for length, gain in gains.items()], "loss")
    assert series.effective_length == 128


def test_an_effective_length_of_nothing_is_said_in_words():
    rows = [_loss(length=length, gain=-0.1) for length in (64, 256)]
    table = main_table([("Zero-shot", standings(gather(rows, "loss"), 256))], 256, rows)
    assert [entry.text for entry in table.rows[-1]][4] == "below 64 (1×)"


def test_methods_are_compared_at_four_times_the_trained_length_else_at_the_longest():
    def compared(*lengths):
        return comparison_length(gather([_loss(length=length) for length in lengths], "loss"))

    assert (compared(64, 256, 512), compared(64, 128, 512), compared(64)) == (256, 512, 64)


def test_the_headline_follows_the_best_method():
    series = gather(text_rows(), "loss")
    base, tuned = (standings(series, 256, phase) for phase in ("base", "tuned"))
    assert headline(base, tuned, 256, TRAINED)[0] == "Only after fine-tuning"
    assert headline(base, (), 256, TRAINED)[0] == "No; at best it breaks even"
    assert headline(base[1:], (), 256, TRAINED)[0] == "No; at best it survives"
    assert headline(base[-2:], (), 256, TRAINED)[0] == "No; it collapses under every method measured"
    assert headline(base[-1:], (), 256, TRAINED)[0] == "No; it collapses"
    assert headline(tuned, (), 256, TRAINED)[0] == "Yes, even without fine-tuning"
    assert headline(base, tuned, 64, TRAINED)[0] == "Not answered"


def test_both_phases_are_measured_by_the_rise_of_the_plain_model_before_tuning():
    def row(phase, length, loss):
        weights = {"phase": phase, "method": "Identity()", "label": "Identity", "tuned_method": None}
        return _loss(length=length, value=loss, gain=1.0 - loss) | weights

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
    row = _loss(length=256, gain=-0.5, method="Identity()", label="Identity")
    row["config"] = row["config"] | {"model": row["config"]["model"] | {"positional": positional}}
    (series,) = gather([row], "loss")
    assert (series.name, series.plain) == (name, positional == "rope")
    short, sentence = headline(standings([series], 256), (), 256, TRAINED)
    assert short == "No; it is hurt"
    assert clause in sentence and "best method" not in sentence


def test_long_decimals_are_short_in_notes():
    assert short_numbers("YaRN(beta_fast=2.8284271247461903, factor=4.0)") == "YaRN(beta_fast=2.828, factor=4.0)"


def test_factors_of_one_method_are_told_apart():
    rows = [_loss(factor_rule=rule, factor=factor) for rule, factor in (("match", 2.0), ("fixed", 2.0), ("fixed", 4.0))]
    names = [one.name for one in gather(rows, "loss")]
    assert names == ["YaRN, matched", "YaRN ×2", "YaRN ×4"]


@pytest.mark.parametrize("measured_as", ["match", "fixed"])
def test_a_cell_that_two_factor_rules_share_is_in_both_series(measured_as):
    fixed = [_loss(factor_rule="fixed", factor=4.0, length=length) for length in (64, 128)]
    match = [_loss(factor_rule="match", factor=length / 64, length=length) for length in (64, 128)]
    shared = _loss(factor_rule=measured_as, factor=4.0, length=256)
    series = gather([*match, *fixed, shared], "loss")
    assert [[cell.length for cell in one.cells] for one in series] == [[64, 128, 256], [64, 128, 256]]
    assert [one.cells[-1].rows for one in series] == [(shared,), (shared,)]


def test_a_failed_cell_that_finished_later_says_so():
    row = _loss()
    failed = {name: value for name, value in row.items() if name != "value"} | {"error": "out of memory"}
    assert [one["finished_later"] for one in settle([failed, row]).failed] == [True]
    assert [one["finished_later"] for one in settle([row | {"key": "another"}, failed]).failed] == [False]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "must exist"),
        ("", "at least one row"),
        ('{"key": "torn', "at least one row"),
        ("not json\n", "line 1"),
        ("[1]\n", "line 1"),
        ('{"key": "a"}\n', "`config_hash`"),
        (json.dumps({**text_rows()[1], "value": None}) + "\n", "a finite number"),
    ],
)
def test_a_file_that_holds_no_rows_is_refused(tmp_path, content, complaint):
    if content is not None:
        (tmp_path / "results.jsonl").write_text(content)
    with pytest.raises(ResultsError, match=complaint):
        write_report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ([] if content is None else ["results.jsonl"])


def test_rows_of_an_earlier_configuration_are_counted_and_not_shown(tmp_path):
    rows = text_rows()[:4]
    results = read_run(write_rows(tmp_path, [rows[0] | {"config_hash": "old"}, *rows[1:]]))
    assert len(results.rows) == 3
    assert "1 row of an earlier configuration" in results.notes[0]


def test_keys_are_classed_against_chance_and_the_trained_length():
    def cell(value):
        return Cell(64, ({"value": value, "count": 300, "config": {"data": {"key_length": 3}}},))

    assert classify_keys(cell(0.96), cell(0.99), 1 / 32) == "keeps finding it"
    assert classify_keys(cell(0.90), cell(0.99), 1 / 32) == "loses some"
    assert classify_keys(cell(0.06), cell(0.99), 1 / 32) == "guesses"
    assert classify_keys(cell(0.50), cell(0.06), 1 / 32) == "never learned it"
    assert classify_keys(None, cell(0.99), 1 / 32) == "unknown"
    assert stderr(cell(1.0)) == pytest.approx(np.sqrt(2 * 102) / 104**1.5)


def test_the_terminal_table_is_the_main_table():
    table = terminal_table(text_rows())
    assert [str(column.header) for column in table.columns][-1] == "effective\nlength"
    assert "Context gain: loss on the last" in str(table.caption)
    assert table.row_count == 12
    assert terminal_table([]).row_count == 0


def test_the_terminal_table_is_whole_in_80_columns():
    names = {"YaRN": "PositionInterpolation", "NTKAware": "a method with a name of several words"}
    rows = [row | {"label": names.get(row["label"], row["label"])} for row in text_rows()]
    shown = io.StringIO()
    Console(file=shown, width=80).print(terminal_table(rows))
    text = shown.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "PositionInterpolation" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_terminal_table_of_passkeys_states_chance_and_errors():
    table = terminal_table(passkey_rows())
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    assert columns[0][:2] == ["guessing: 3.1\N{NO-BREAK SPACE}%", "Identity (plain)"]
    assert columns[3][:2] == ["3.1", "23.4 ± 3.7"]
    assert "on 128 keys" in str(table.caption)


def _loss(*, gain=0.0, **fields):
    row = next(row for row in text_rows() if row["label"] == "YaRN" and row["metric"] == "loss")
    return row | {"context_gain": gain, "context_gain_stderr": 0.01} | fields

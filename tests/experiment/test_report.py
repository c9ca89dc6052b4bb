"""What the report makes of rows: series and their names, the table of the terminal, refusals."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rope_jax.experiment.report import ResultsError, terminal_table, write_report
from rope_jax.experiment.report.read import read_run, settle
from rope_jax.experiment.report.series import gather
from rope_jax.experiment.report.verdict import comparison_length
from rope_jax.experiment.report.words import short_numbers
from tests.experiment.report_rows import loss_row, passkey_rows, text_rows, write_rows

ROOT = Path(__file__).parents[2]
MINUS = "\N{MINUS SIGN}"


def test_methods_are_compared_at_four_times_the_trained_length_else_at_the_longest():
    def compared(*lengths):
        return comparison_length(gather([loss_row(length=length) for length in lengths], "loss"))

    assert (compared(64, 256, 512), compared(64, 128, 512), compared(64)) == (256, 512, 64)


def test_long_decimals_are_short_in_notes():
    assert short_numbers("YaRN(beta_fast=2.8284271247461903, factor=4.0)") == "YaRN(beta_fast=2.828, factor=4.0)"


def test_factors_of_one_method_are_told_apart():
    rows = [
        loss_row(factor_rule=rule, factor=factor) for rule, factor in (("match", 2.0), ("fixed", 2.0), ("fixed", 4.0))
    ]
    names = [one.name for one in gather(rows, "loss")]
    assert names == ["YaRN, matched", "YaRN ×2", "YaRN ×4"]


@pytest.mark.parametrize("measured_as", ["match", "fixed"])
def test_a_cell_that_two_factor_rules_share_is_in_both_series(measured_as):
    fixed = [loss_row(factor_rule="fixed", factor=4.0, length=length) for length in (64, 128)]
    match = [loss_row(factor_rule="match", factor=length / 64, length=length) for length in (64, 128)]
    shared = loss_row(factor_rule=measured_as, factor=4.0, length=256)
    series = gather([*match, *fixed, shared], "loss")
    assert [[cell.length for cell in one.cells] for one in series] == [[64, 128, 256], [64, 128, 256]]
    assert [one.cells[-1].rows for one in series] == [(shared,), (shared,)]


def test_a_failed_cell_that_finished_later_says_so():
    row = loss_row()
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


def test_the_terminal_table_is_the_main_table():
    table = terminal_table(text_rows())
    assert [str(column.header) for column in table.columns][-1] == "effective\nlength"
    assert str(table.caption).startswith("Yes, after fine-tuning; undecided without it: at 256 tokens")
    assert "Context gain: loss on the last" in str(table.caption)
    assert [str(cell) for cell in table.columns[4].cells][2] == "between 64\nand 256"
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


def test_the_terminal_table_of_passkeys_states_chance_and_intervals():
    table = terminal_table(passkey_rows())
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    assert columns[0][:2] == ["guessing: 3.1\N{NO-BREAK SPACE}%", "Identity (plain)"]
    assert columns[3][:2] == ["3.1", "23.4\n17–31"]
    assert "on 128 keys" in str(table.caption)
    assert str(table.caption).startswith("Yes, it still finds the key: at 256 tokens")

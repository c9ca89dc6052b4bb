"""What counts as a row of results.jsonl, by name and type."""

import json
from typing import Any

import pytest

from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.results import Results, check_row, parse_rows, read_results
from tests.experiment.report_rows import text_rows

CONFIG = ExperimentConfig(name="a")
CELL: dict[str, Any] = {"phase": "base", "seed": 0, "method": "YaRN()", "factor": 4.0, "length": 256, "metric": "loss"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    with Results(tmp_path_factory.mktemp("rows"), CONFIG) as results:
        return results.append({**CELL, "label": "YaRN", "value": 1.5})


@pytest.mark.parametrize(
    "name", ["key", "config_hash", "config", "task", "trained_length", "label", "value", *sorted(CELL)]
)
def test_a_row_without_a_field_is_refused(sound, name):
    with pytest.raises(ValueError, match=rf"^here: `{name}` must .*; got nothing\. Repair"):
        check_row({field: value for field, value in sound.items() if field != name}, "here")


@pytest.mark.parametrize(
    "change",
    [
        {"value": "1.5"},
        {"value": float("nan")},
        {"value": float("inf")},
        {"value": True},
        {"value": None},
        {"config": None},
        {"config": {}},
        {"length": "32"},
        {"length": 32.0},
        {"seed": -1},
        {"factor": "4"},
        {"metric": 3},
        {"key": ""},
        {"error": "both"},
    ],
)
def test_a_spoilt_row_is_refused_with_its_file_and_line(sound, tmp_path, change):
    path = tmp_path / "results.jsonl"
    content = f"{json.dumps(sound)}\n{json.dumps(sound | change)}\n"
    path.write_text(content, encoding="utf-8")
    name = "value" if "error" in change else next(iter(change))
    for use in (read_results, parse_rows, lambda path: Results(path.parent, CONFIG)):
        with pytest.raises(ValueError, match=rf"results.jsonl, line 2: `{name}` must .*; got .*\. Repair or delete"):
            use(path)
    assert path.read_text(encoding="utf-8") == content


def test_tuned_rows_say_what_the_weights_were_tuned_with(sound):
    with pytest.raises(ValueError, match="`tuned_method` must be text; got nothing"):
        check_row(sound | {"phase": "tuned"}, "here")
    check_row(sound | {"phase": "tuned", "tuned_method": "YaRN()", "tuned_factor": 4.0}, "here")


def test_a_failed_row_needs_no_value(sound):
    failed = {name: value for name, value in sound.items() if name != "value"}
    check_row(failed | {"error": "out of memory"}, "here")


def test_settings_of_another_version_are_refused_in_words(sound, tmp_path):
    row = sound | {"config_hash": "f" * 64, "config": {table: {} for table in sound["config"]}}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="settings of another version"):
        Results(tmp_path, CONFIG)


def test_what_the_report_is_tested_with_are_rows():
    for row in text_rows():
        check_row(row, "here")

"""results.jsonl: whole lines, cells told apart by their key, one config and one run to a folder."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rope_jax.experiment import provenance
from rope_jax.experiment.config import ExperimentConfig, TrainConfig, config_dict, config_hash
from rope_jax.experiment.results import Results, cell_key, commit, device_name, read_results, versions

CONFIG = ExperimentConfig(name="a")
CELL: dict[str, Any] = {"phase": "base", "seed": 0, "method": "YaRN()", "factor": 4.0, "length": 256, "metric": "loss"}
TUNED = {**CELL, "phase": "tuned", "tuned_method": "YaRN()", "tuned_factor": 4.0}


def row(length: int = 256, value: float = 1.5) -> dict:
    return {**CELL, "length": length, "label": "YaRN", "value": value, "count": 768, "seconds": 0.5}


def test_a_row_says_where_its_number_came_from(tmp_path):
    with Results(tmp_path / "new" / "folder", CONFIG) as results:
        written = results.append({**row(), "by_position": [1.0, 2.0]})
        assert results.rows() == [written]
    (line,) = (tmp_path / "new" / "folder" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == written
    assert written["key"] == cell_key(CONFIG, CELL)
    assert written["config_hash"] == config_hash(CONFIG)
    assert written["config"] == config_dict(CONFIG)
    assert (written["task"], written["trained_length"]) == ("text", 64)
    assert (written["device"], written["versions"], written["commit"]) == (device_name(), versions(), commit())
    assert (written["value"], written["by_position"]) == (1.5, [1.0, 2.0])


def test_a_finished_cell_is_found_again(tmp_path):
    with Results(tmp_path, CONFIG) as results:
        assert not results.done(cell_key(CONFIG, CELL))
        results.append(row())
        assert results.done(cell_key(CONFIG, CELL))
    with Results(tmp_path, CONFIG) as results:
        assert results.done(cell_key(CONFIG, CELL))
        assert not results.done(cell_key(CONFIG, {**CELL, "seed": 1}))
        with pytest.raises(ValueError, match="must be a new cell"):
            results.append(row(value=9.0))
    assert [found["value"] for found in read_results(tmp_path)] == [1.5]


def test_a_torn_last_line_is_dropped_and_done_again(tmp_path):
    lengths = [64 * k for k in range(1, 10)]
    with Results(tmp_path, CONFIG) as results:
        for length in lengths[:5]:
            results.append(row(length, value=length / 64))
    path = tmp_path / "results.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    assert [found["length"] for found in read_results(path)] == lengths[:4]
    assert path.read_bytes() == content[:-40]
    with Results(tmp_path, CONFIG) as results:
        for length in lengths:
            if not results.done(cell_key(CONFIG, {**CELL, "length": length})):
                results.append(row(length, value=length / 64))
    assert path.read_bytes().startswith(content)
    found = read_results(tmp_path)
    assert [(one["length"], one["value"]) for one in found] == [(length, length / 64) for length in lengths]
    assert len({one["key"] for one in found}) == 9


def test_only_half_a_line_is_an_empty_file(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"key": "ab')
    assert read_results(path) == []
    with Results(tmp_path, CONFIG) as results:
        assert results.rows() == []
    assert path.read_bytes() == b""


@pytest.mark.parametrize("line", [b"{broken}", b"3", b""])
def test_a_whole_line_that_is_no_row_is_refused_and_kept(tmp_path, line):
    path = tmp_path / "results.jsonl"
    with Results(tmp_path, CONFIG) as results:
        results.append(row())
    spoiled = path.read_bytes() + line + b"\n" + b"torn"
    path.write_bytes(spoiled)
    for use in (lambda: read_results(path), lambda: Results(tmp_path, CONFIG)):
        with pytest.raises(ValueError, match=r"results.jsonl must hold one JSON object a line; line 2"):
            use()
    assert path.read_bytes() == spoiled


def test_another_config_is_refused_with_what_differs(tmp_path):
    with Results(tmp_path, CONFIG) as results:
        results.append(row())
    before = (tmp_path / "results.jsonl").read_bytes()
    other = dataclasses.replace(CONFIG, train=TrainConfig(steps=601, batch=16))
    with pytest.raises(ValueError, match=r"train.batch = 32 there, 16 here; train.steps = 600 there, 601 here\. Give"):
        Results(tmp_path, other)
    assert (tmp_path / "results.jsonl").read_bytes() == before
    Results(tmp_path, dataclasses.replace(CONFIG, output="elsewhere", seeds=(0, 1))).close()


def test_other_text_is_refused(tmp_path):
    with Results(tmp_path, CONFIG, "aa" * 32) as results:
        assert results.append(row())["corpus"] == "aa" * 32
    for other, got in (("bb" * 32, "digest bbbbbbbbbbbb"), (None, "none recorded")):
        with pytest.raises(ValueError, match=rf"text of .* digest aaaaaaaaaaaa in .*; got {got}: the files"):
            Results(tmp_path, CONFIG, other)
    Results(tmp_path, CONFIG, "aa" * 32).close()


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with Results(tmp_path, CONFIG) as results:
        results.append(row())
        with pytest.raises(RuntimeError, match="open in another one"):
            Results(tmp_path, CONFIG)
        results.append(row(length=512))
    with Results(tmp_path, CONFIG) as results:
        assert len(results.rows()) == 2


def test_a_failed_cell_is_recorded_and_tried_again(tmp_path):
    with Results(tmp_path, CONFIG) as results:
        results.append({**CELL, "label": "YaRN", "error": "out of memory"})
        assert not results.done(cell_key(CONFIG, CELL))
    assert read_results(tmp_path) == []
    with Results(tmp_path, CONFIG) as results:
        results.append(row())
    assert [found["value"] for found in read_results(tmp_path)] == [1.5]
    assert len((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": float("nan")}, "finite"),
        ({"by_position": [1.0, float("inf")]}, "finite"),
        ({"error": "both"}, "either value or error"),
    ],
)
def test_a_row_that_says_nothing_clear_is_refused_and_not_written(tmp_path, change, words):
    with Results(tmp_path, CONFIG) as results:
        with pytest.raises(ValueError, match=words):
            results.append({**row(), **change})
        assert results.rows() == []
    assert (tmp_path / "results.jsonl").read_bytes() == b""


def test_keys_tell_cells_apart():
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"method": "NTKAware()"},
        {"factor": 2.0},
        {"length": 512},
        {"metric": "truncated_loss"},
    ]
    cells = [CELL, TUNED, {**TUNED, "tuned_factor": 2.0}, {**TUNED, "tuned_method": "Identity()"}]
    cells += [{**CELL, **change} for change in changes]
    other = dataclasses.replace(CONFIG, train=TrainConfig(steps=601))
    keys = [cell_key(CONFIG, cell) for cell in cells] + [cell_key(other, CELL)]
    assert len(set(keys)) == len(cells) + 1


def test_keys_ignore_what_was_measured_and_how_a_number_is_written():
    key = cell_key(CONFIG, CELL)
    assert cell_key(CONFIG, {**CELL, "factor": 4}) == key
    assert cell_key(CONFIG, row()) == key
    assert cell_key(CONFIG, dict(reversed(CELL.items()))) == key


@pytest.mark.parametrize("missing", sorted(TUNED))
def test_a_cell_without_a_field_is_refused(missing):
    cell = {field: value for field, value in TUNED.items() if field != missing}
    if missing == "phase":
        cell = {field: value for field, value in CELL.items() if field != missing}
    with pytest.raises(ValueError, match=rf"got none for {missing}"):
        cell_key(CONFIG, cell)


def test_provenance_names_what_is_installed():
    found = versions()
    assert {"python", "prng", "jax", "jaxlib", "flax", "numpy"} <= found.keys()
    assert found["prng"] == "threefry2x32"
    assert "cores" in device_name()


def test_the_commit_is_that_of_the_checkout_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "rope_jax" / "experiment" / "provenance.py"))
    assert commit() is None
    environment = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), *who, *words]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    assert commit() is None
    (tmp_path / "file").write_text("one", encoding="utf-8")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    assert commit() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert commit() == git("rev-parse", "HEAD") + "-dirty"


WRITER = """
import sys
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.results import Results

cell = {"phase": "base", "seed": 0, "method": "YaRN()", "label": "YaRN", "factor": 4.0, "metric": "loss", "value": 1.5}
with Results(sys.argv[1], ExperimentConfig(name="a")) as results:
    for length in range(1, 1_000_000):
        results.append({**cell, "length": length})
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_rows_and_no_lock(tmp_path):
    path = tmp_path / "results.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=Path(__file__).resolve().parents[2])
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size > 50_000):
            assert writer.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    with Results(tmp_path, CONFIG) as results:
        lengths = [found["length"] for found in results.rows()]
    assert lengths == list(range(1, len(lengths) + 1))
    assert len(lengths) > 10

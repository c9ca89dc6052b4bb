"""The sweep: stopped, killed or out of memory at any moment, it ends with the table of an unbroken run."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.plan import Cell
from rope_jax.experiment.results import read_results
from rope_jax.experiment.weights import Weights
from tests.experiment.tiny import passkey_config, run, table, text_config, toml

ROOT = Path(__file__).resolve().parents[2]


def test_a_finished_sweep_measures_nothing(finished, monkeypatch):
    config, folder, _ = finished
    before = (folder / "results.jsonl").read_bytes()
    monkeypatch.setattr(Laboratory, "measure", None)
    assert run(config).finished == 0
    assert (folder / "results.jsonl").read_bytes() == before


def test_a_sweep_stopped_in_any_cell_ends_with_the_same_table(finished, tmp_path, monkeypatch):
    config, folder, _ = finished
    config = dataclasses.replace(config, output=str(tmp_path))
    measure = Laboratory.measure
    measured: list[Cell] = []
    for stop in (1, 8):

        def stopped(self, cell, rows, limit=stop):
            if len(measured) == limit:
                raise KeyboardInterrupt
            measured.append(cell)
            return measure(self, cell, rows)

        monkeypatch.setattr(Laboratory, "measure", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(config)
        # A row torn by the stop is dropped and measured again.
        with (tmp_path / "tiny" / "results.jsonl").open("ab") as file:
            file.write(b'{"key": "torn')
    monkeypatch.setattr(Laboratory, "measure", measure)
    assert run(config).finished == 2
    here, there = table(tmp_path / "tiny"), table(folder)
    output = [{name: value for name, value in row.items() if name != "config"} for row in here]
    assert output == [{name: value for name, value in row.items() if name != "config"} for row in there]


def test_a_length_that_does_not_fit_in_memory_is_recorded_and_tried_again(finished, tmp_path, monkeypatch):
    config, folder, _ = finished
    config = dataclasses.replace(config, output=str(tmp_path))
    loss = Laboratory._loss

    def full(self, cell, rows):
        if cell.length == 32:
            raise MemoryError("RESOURCE_EXHAUSTED: Out of memory allocating 68719476736 bytes.")
        return loss(self, cell, rows)

    monkeypatch.setattr(Laboratory, "_loss", full)
    outcome = run(config)
    assert (outcome.finished, len(outcome.failed)) == (7, 3)
    lines = [json.loads(line) for line in (tmp_path / "tiny" / "results.jsonl").read_text().splitlines()]
    failed = [line for line in lines if "error" in line]
    assert {line["length"] for line in failed} == {32}
    assert all("68719476736 bytes" in line["error"] for line in failed)
    monkeypatch.setattr(Laboratory, "_loss", loss)
    assert run(config).finished == 3
    values = {row["key"]: row["value"] for row in read_results(folder)}
    assert {row["key"]: row["value"] for row in read_results(tmp_path / "tiny")} == values


def test_cells_wait_for_weights_that_did_not_fit(tmp_path, monkeypatch):
    config = text_config(tmp_path)
    train = Weights._train

    def full(self, cell, task, reporter):
        if cell.tuned_method:
            raise MemoryError
        return train(self, cell, task, reporter)

    monkeypatch.setattr(Weights, "_train", full)
    outcome = run(config)
    assert (outcome.finished, len(outcome.failed), outcome.waiting) == (6, 1, 3)


def test_a_fault_of_the_program_is_not_taken_for_lack_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(Laboratory, "_passkey", lambda self, cell: dict[str, float]()["absent"])
    with pytest.raises(KeyError, match="absent"):
        run(passkey_config(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments_it_ends_with_the_same_table(finished, tmp_path):
    config, folder, _ = finished
    config = dataclasses.replace(config, output=str(tmp_path))
    (tmp_path / "tiny.toml").write_text(toml(config), encoding="utf-8")
    script = (
        "import sys; from rope_jax.experiment.config import load_config; from rope_jax.experiment.sweep import Sweep\n"
        "with Sweep(load_config(sys.argv[1])) as sweep: sweep.run()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "tiny.toml")]

    def start():
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    assert start().wait() == 0
    whole = time.monotonic() - began
    expected = table(tmp_path / "tiny")
    os.rename(tmp_path / "tiny", tmp_path / "whole")
    moments = random.Random(0)
    for _ in range(5):
        process = start()
        time.sleep(moments.uniform(0.3, 1.0) * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start().wait() == 0
    assert table(tmp_path / "tiny") == expected
    values = [row["value"] for row in read_results(folder)]
    assert [row["value"] for row in expected] == values

"""What the shipped experiments show, run as a user runs them. Minutes each, so not by default."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rope_jax.experiment.results import read_results

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def rows_of(config: str, output: Path, metric: str) -> list[dict[str, Any]]:
    command = [sys.executable, "scripts/extrapolate.py", config, "--output", str(output)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (folder,) = output.iterdir()
    assert (folder / "report.html").stat().st_size > 100_000
    return [row for row in read_results(folder) if row["metric"] == metric]


def value(rows: list[dict[str, Any]], **fields: Any) -> float:
    (row,) = [row for row in rows if all(row.get(name) == wanted for name, wanted in fields.items())]
    return row["value"]


def test_plain_collapses_beyond_the_trained_length_and_yarn_does_not(tmp_path: Path) -> None:
    rows = rows_of("configs/quickstart.toml", tmp_path, "loss")
    rise = {
        method: value(rows, phase="base", label=method, length=256) - value(rows, phase="base", label=method, length=64)
        for method in ("Identity", "YaRN")
    }
    assert rise["Identity"] > 0.5
    assert rise["YaRN"] < 0.5 * rise["Identity"]


def test_yarn_keeps_finding_the_key_where_plain_guesses(tmp_path: Path) -> None:
    rows = rows_of("configs/extrapolate/passkey.toml", tmp_path, "passkey_accuracy")
    for seed in (0, 1, 2):
        assert value(rows, seed=seed, label="Identity", length=64) > 0.95
        assert value(rows, seed=seed, label="Identity", length=1024) <= 0.25
        assert value(rows, seed=seed, label="YaRN", length=1024) >= 0.85

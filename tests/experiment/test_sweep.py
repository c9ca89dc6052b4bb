"""The sweep: which cells there are, what is in a row, and that stopping it anywhere changes nothing."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rope_jax.experiment.config import SweepConfig
from rope_jax.experiment.plan import plan
from rope_jax.experiment.results import cell_key, read_results
from rope_jax.experiment.sweep import Sweep
from tests.experiment.tiny import passkey_config, run, text_config


def named(cells):
    return [(cell.phase, cell.metric, cell.method, cell.factor, cell.length) for cell in cells]


def test_the_plan_is_every_cell_in_order(tmp_path):
    assert named(plan(text_config(tmp_path))) == [
        ("base", "training", "Identity()", 1.0, 16),
        ("base", "truncated_loss", "truncated", 1.0, 32),
        ("base", "loss", "Identity()", 1.0, 16),
        ("base", "loss", "Identity()", 1.0, 32),
        ("base", "loss", "YaRN(beta_fast=2.0)", 1.0, 16),
        ("base", "loss", "YaRN(beta_fast=2.0)", 2.0, 32),
        ("tuned", "training", "YaRN(beta_fast=2.0)", 2.0, 32),
        ("tuned", "truncated_loss", "truncated", 2.0, 32),
        # Frequencies that were tuned at a factor of 2 are not called with less.
        ("tuned", "loss", "YaRN(beta_fast=2.0)", 2.0, 16),
        ("tuned", "loss", "YaRN(beta_fast=2.0)", 2.0, 32),
    ]


def test_a_seed_repeats_the_plan_and_a_factor_only_adds_cells_of_methods_that_take_it(tmp_path):
    config = text_config(tmp_path)
    twice = plan(dataclasses.replace(config, seeds=(0, 3)))
    assert [cell.seed for cell in twice] == [0] * 10 + [3] * 10
    sweep = SweepConfig(
        methods=("Identity()", "YaRN()", "DynamicNTK()", "NTKAware(factor=3)"), factors=("match", 2.0), multiples=(1, 2)
    )
    cells = [cell for cell in plan(dataclasses.replace(config, sweep=sweep)) if cell.metric == "loss"]
    base = [(cell.label, cell.factor, cell.factor_rule, cell.length) for cell in cells if cell.phase == "base"]
    assert base == [
        ("Identity", 1.0, "match", 16),
        ("Identity", 1.0, "match", 32),
        ("YaRN", 1.0, "match", 16),
        ("YaRN", 2.0, "match", 32),
        ("YaRN", 2.0, "fixed", 16),
        ("DynamicNTK", 1.0, "match", 16),
        ("DynamicNTK", 1.0, "match", 32),
        ("NTKAware(factor=3)", 3.0, "fixed", 16),
        ("NTKAware(factor=3)", 3.0, "fixed", 32),
    ]
    keys = [cell_key(config, cell.row()) for cell in plan(dataclasses.replace(config, sweep=sweep))]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sweep": SweepConfig(methods=("Yarn()",))}, "'YaRN'"),
        ({"sweep": SweepConfig(methods=("YaRN()", "YaRN(beta_fast=2.0)"))}, "must differ"),
        ({"sweep": SweepConfig(methods=("YaRN(factor=4)", "YaRN(factor=4.0)"))}, "must differ"),
        ({"sweep": SweepConfig(methods=("LongRoPE()",))}, "without short_factors"),
        ({"sweep": SweepConfig(methods=("Rescale(factors=[1, 2])",))}, "4 for rotary_dim 8"),
        ({"sweep": SweepConfig(methods=("BaseChange(theta=0.5)",))}, "theta"),
        ({"evaluate": {"truncation_stride": 3}}, "truncation_stride` must divide"),
        ({"evaluate": {"windows": 1}}, "windows` must be at least 2"),
        ({"model": {"windows": {"G": 16}}}, "must reach a rotated layer"),
        ({"model": {"no_rope": ("G",)}}, "must reach a rotated layer"),
        ({"data": {"source": "absent/*.txt"}}, "absent"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path, change, message):
    config = text_config(tmp_path)
    parts = {
        name: dataclasses.replace(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in change.items()
    }
    with pytest.raises((ValueError, TypeError), match=message):
        Sweep(dataclasses.replace(config, **parts))
    assert not Path(config.output).exists()


def of(rows, **fields):
    (row,) = [row for row in rows if all(row.get(name) == value for name, value in fields.items())]
    return row


def test_rows_are_the_plan(finished):
    config, _, rows = finished
    assert [row["key"] for row in rows] == [cell_key(config, cell.row()) for cell in plan(config)]
    assert all(row["trained_length"] == 16 and row["seconds"] > 0 for row in rows)


def test_loss_rows_hold_the_tail_the_bins_and_the_paired_gain(finished):
    _, _, rows = finished
    base = of(rows, phase="base", metric="truncated_loss")
    for row in (row for row in rows if row["metric"] == "loss"):
        assert row["count"] == 6 * 4
        assert len(row["by_position"]) == row["length"] // 4
        assert row["by_position"][-1] == pytest.approx(row["value"], abs=1e-12)
        assert np.mean(row["by_position"]) == pytest.approx(row["mean"], abs=1e-12)
        assert row["truncated"] - row["value"] == pytest.approx(row["context_gain"], abs=1e-12)
        gains = np.asarray(row["window_gains"])
        assert gains.shape == (6,) and gains.mean() == pytest.approx(row["context_gain"], abs=1e-12)
        assert gains.std(ddof=1) / np.sqrt(6) == pytest.approx(row["context_gain_stderr"], abs=1e-12)
        assert len(row["inv_freq"]) == 4
        assert 1 / row["inv_freq"][0] == pytest.approx(1.0)
    plain = of(rows, phase="base", method="Identity()", length=32)
    assert plain["truncated"] == base["value"]
    assert base["by_position"][-1] == pytest.approx(base["value"], abs=1e-12)
    assert len(base["tails"]) == len(base["tails_within"]["16"]) == 6
    assert plain["context_gain_stderr"] > 0
    yarn = of(rows, phase="base", method="YaRN(beta_fast=2.0)", length=32)
    assert yarn["attention_scale"] == pytest.approx(0.1 * np.log(2) + 1)
    assert yarn["value"] != plain["value"]


def test_nothing_is_cut_off_at_the_trained_length(finished):
    _, _, rows = finished
    plain = of(rows, phase="base", metric="loss", method="Identity()", length=16)
    assert plain["context_gain"] == plain["context_gain_stderr"] == 0.0
    matched = of(rows, phase="base", metric="loss", method="YaRN(beta_fast=2.0)", length=16)
    assert matched["value"] == pytest.approx(plain["value"], abs=1e-6)


def test_tuned_weights_are_held_against_the_better_baseline(finished):
    _, _, rows = finished
    tuned = of(rows, phase="tuned", metric="truncated_loss")
    base = of(rows, phase="base", metric="truncated_loss")
    assert tuned["plain"] == base["value"]
    assert tuned["value"] == min(tuned["plain"], tuned["tuned"])
    assert tuned["chosen"] == ("tuned" if tuned["tuned"] < tuned["plain"] else "plain")
    assert tuned["tuned_factor"] == 2.0
    training = of(rows, phase="tuned", metric="training")
    assert (training["tokens"], training["steps"]) == (16 * 8 * 9, 3)
    assert of(rows, phase="base", metric="training")["tokens"] == 16 * 8 * 6


def test_passkey_rows_hold_accuracy_by_depth(tmp_path):
    config = passkey_config(tmp_path)
    assert run(config).finished == 5
    rows = [row for row in read_results(Path(config.output) / "keys") if row["metric"] != "training"]
    assert {row["metric"] for row in rows} == {"passkey_accuracy"}
    for row in rows:
        assert row["count"] == 3 * 2
        assert [depth for depth, _ in row["by_depth"]] == [0.0, 0.5, 1.0]
        assert np.mean([share for _, share in row["by_depth"]]) == pytest.approx(row["value"])
        # One token a key: an answer is right as a whole when its token is.
        assert row["whole_answers"] == row["value"]

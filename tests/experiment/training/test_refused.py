"""Runs that cannot be carried out: one line, code 2 and nothing written; one that diverges: code 1."""

import dataclasses
import math
from pathlib import Path

import pytest
from jax.sharding import AbstractMesh

from rope_jax.experiment.checkpoint import Checkpoints
from rope_jax.experiment.training import guard
from rope_jax.experiment.training.command import main
from rope_jax.experiment.training.evaluation import HeldOut
from rope_jax.experiment.training.rules import check_mesh
from rope_jax.experiment.training.settings import ComputeConfig, DistributedConfig, HeldOutConfig
from rope_jax.experiment.training.start import started
from tests.experiment.training.runs import run_config, toml


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return run_config(tmp_path_factory.mktemp("refused"))


def staged(config, index, **changes):
    stages = list(config.stages)
    stages[index] = dataclasses.replace(stages[index], **changes)
    return dataclasses.replace(config, stages=tuple(stages))


def recipe(config, **changes):
    return dataclasses.replace(config.data, **changes)


REFUSED = {
    "steps beyond int32": (lambda c: staged(c, 0, steps=2**40), "`stages.0.steps` must be below 2^31"),
    "a seed beyond int64": (lambda c: dataclasses.replace(c, seed=2**70), "`seed` must be below 2^31"),
    "a head of any width": (
        lambda c: dataclasses.replace(c, model=dataclasses.replace(c.model, head_dim=10**14)),
        "`model.head_dim` must be below 2^31",
    ),
    "nothing trained": (lambda c: staged(c, 1, original_length=0), "`stages[1].original_length` must be at least 1"),
    "a factor below 1": (lambda c: staged(c, 1, factor=0.0), "`stages[1].factor` must be at least 1"),
    "a bucket longer than a row": (
        lambda c: dataclasses.replace(c, data=recipe(c, buckets=(32,))),
        "`data.buckets` must hold lengths from 2 to that of the rows, 16",
    ),
    "a bucket of a later stage": (
        lambda c: staged(c, 1, data=recipe(c, buckets=(7,))),
        "`data.buckets` must hold divisors of the 256 tokens",
    ),
    "an end token of a stage's own": (
        lambda c: staged(c, 1, data=recipe(c, end_token="none")),
        "`stages[1].data.end_token` must be that of the run, 'auto'; got 'none'",
    ),
    "more chunks than tokens": (
        lambda c: staged(c, 1, data=recipe(c, pose_chunks=300), pose_target=64),
        "`data.pose_chunks` must be at most the 32 tokens",
    ),
    "positions beyond int32": (
        lambda c: staged(c, 1, data=recipe(c, pose_chunks=2), pose_target=2**31),
        "`stages.1.pose_target` must be below 2^31",
    ),
    "a process of nobody's": (
        lambda c: dataclasses.replace(c, distributed=DistributedConfig(processes=2)),
        "`distributed.processes` must be left out without distributed.coordinator",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_says_what_cannot_be_done(config, tmp_path, capsys, case):
    change, words = REFUSED[case]
    changed = dataclasses.replace(change(config), output=str(tmp_path / "runs"))
    path = tmp_path / "run.toml"
    path.write_text(toml_of(changed), encoding="utf-8")
    assert main([str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith(f"error: {words}")
    assert not (tmp_path / "runs").exists()


def toml_of(config):
    """`toml`, with what a stage changes of the data as a table of its own."""
    plain = dataclasses.replace(config, stages=tuple(dataclasses.replace(s, data=None) for s in config.stages))
    blocks = toml(plain).split("[[stages]]\n")
    for index, stage in enumerate(config.stages):
        if stage.data is not None:
            blocks[index + 1] += f"[stages.data]\nbuckets = {list(stage.data.buckets)}\n"
            blocks[index + 1] += f'pose_chunks = {stage.data.pose_chunks}\nend_token = "{stage.data.end_token}"\n'
    return "[[stages]]\n".join(blocks)


def test_data_that_is_no_table_is_refused_where_a_stage_changes_it(tmp_path, capsys):
    path = tmp_path / "run.toml"
    stage = '[[stages]]\nname = "a"\nlength = 16\nsteps = 1\n[stages.data]\nseed = 1\n'
    path.write_text(f'name = "a"\ndata = "x"\n{stage}', encoding="utf-8")
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: `data` must be a table; got 'x'.")


@pytest.mark.parametrize("what", ["runs", "runs/run", "runs/run/checkpoints"])
def test_a_file_in_the_way_is_named_and_kept(config, tmp_path, capsys, what):
    there = tmp_path / what
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text("mine")
    path = tmp_path / "run.toml"
    path.write_text(toml(dataclasses.replace(config, output=str(tmp_path / "runs"))), encoding="utf-8")
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: `output` must lead to a folder; got the file {there}.")
    assert there.read_text() == "mine" and not (tmp_path / "runs" / "run" / "lock").exists()


def mesh(**sizes):
    axes = {"data": 1, "fsdp": 1, "tensor": 1, "context": 1} | sizes
    return AbstractMesh(tuple(axes.values()), tuple(axes))


def test_lengths_that_are_only_evaluated_must_be_dealt_out_too(config):
    zigzag = dataclasses.replace(config, compute=ComputeConfig(context_order="zigzag"))
    check_mesh(started(zigzag), mesh(context=2))
    evaluated = dataclasses.replace(zigzag, evaluate=HeldOutConfig(lengths=(30,)))
    with pytest.raises(ValueError, match="divisible by 4 for 2 shards in zigzag order; got 30"):
        check_mesh(started(evaluated), mesh(context=2))
    with pytest.raises(ValueError, match="divisible by 4 for 2 shards in zigzag order; got 66"):
        check_mesh(started(staged(zigzag, 2, length=66)), mesh(context=2))


def test_held_out_losses_that_are_not_finite_end_a_run_as_diverged(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(HeldOut, "losses", lambda *_: {"loss": math.nan, "tail": 1.0})
    saved = Checkpoints.save
    # So that the last one is whole by then.
    monkeypatch.setattr(Checkpoints, "save", lambda self, *said, wait: saved(self, *said, wait=True))
    path = tmp_path / "run.toml"
    path.write_text(toml(dataclasses.replace(config, output=str(tmp_path))), encoding="utf-8")
    assert main([str(path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: `held-out loss` must stay finite; got nan at step 3. Lower the learning rate")
    assert last.endswith(f"the last good checkpoint is step 2 of {tmp_path / 'run' / 'checkpoints'}.")
    assert sorted(p.name for p in Path(tmp_path, "run", "checkpoints").iterdir()) == ["2"]


def test_any_measured_number_can_show_divergence():
    guard.check_numbers({"a": [1.0, {"b": 2.0}]}, "attention", 4, "Stop.")
    with pytest.raises(FloatingPointError, match=r"`attention` must stay finite; got inf at step 4\. Stop\."):
        guard.check_numbers({"a": [1.0, {"b": math.inf}]}, "attention", 4, "Stop.")

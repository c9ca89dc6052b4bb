"""A run from end to end: what it writes, that it goes on exactly, that what is damaged or foreign is refused."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx

from rope_jax.experiment.training import feed
from rope_jax.experiment.training.command import main
from rope_jax.experiment.training.export import export_run
from rope_jax.experiment.training.metrics import lines_of
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.run import train
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.settings import ComputeConfig, HeldOutConfig, StageConfig
from rope_jax.experiment.training.stages import stage_schedules
from rope_jax.huggingface.weights import load_pretrained
from tests.experiment.training.runs import run_config, toml, trained


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = run_config(tmp_path_factory.mktemp("run"))
    outcome = trained(config)
    assert (outcome.step, outcome.stopped) == (9, None)
    return config, Path(config.output) / config.name, outcome.state


@pytest.fixture
def copied(finished, tmp_path):
    """The same run in a folder of its own, to be spoiled."""
    config, folder, _ = finished
    shutil.copytree(folder, tmp_path / config.name)
    return dataclasses.replace(config, output=str(tmp_path)), tmp_path / config.name


def same(left, right):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(jax.device_get(left)), jax.tree.leaves(jax.device_get(right)), strict=True)
    )


def test_the_record_says_what_each_stage_saw(finished):
    _, folder, state = finished
    record = json.loads((folder / "record.json").read_text())
    base, longer, reach = record["stages"]
    assert [stage["name"] for stage in record["stages"]] == ["base", "longer", "reach"]
    assert [(stage["rows"], stage["steps"]) for stage in record["stages"]] == [(16, 5), (8, 4), (4, 0)]
    assert [stage["factor"] for stage in record["stages"]] == [1.0, 2.0, 2.0]
    assert base["trained_on"]["places"] == 5 * 256
    assert longer["trained_on"]["batches_by_length"] == {"32": 4}
    for stage in (base, longer):
        seen = stage["trained_on"]
        assert sum(seen["context"].values()) == seen["targets"] <= seen["places"] - seen["padding"]
        assert seen["sources"][0]["achieved"] == 1.0
        held = seen["sources"][0]
        assert held["documents"] > 1 and held["epochs"] == held["targets"] / held["targets_an_epoch"] > 0
    assert reach["trained_on"] is None
    assert list(base["evaluation"]) == ["16"]
    assert list(reach["evaluation"]) == ["16", "64"]
    learned = np.exp(np.asarray(state["frequencies"]["G"], np.float64))
    assert np.allclose(longer["schedules"]["G"]["inv_freq"], learned, rtol=1e-6)
    # Learned frequencies are no longer those of the base, and the method at the end halves them.
    assert not np.allclose(learned, 100_000.0 ** (-np.arange(4) / 4), rtol=1e-4)
    assert np.allclose(reach["schedules"]["G"]["inv_freq"], learned / 2, rtol=1e-6)
    assert base["schedules"]["G"]["inv_freq"][1] == pytest.approx(0.1)


def test_metrics_are_lines_with_stage_and_step(finished):
    _, folder, _ = finished
    lines = lines_of(folder / "metrics.jsonl")
    steps = {
        kind: [line["step"] for line in lines if line["kind"] == kind] for kind in {line["kind"] for line in lines}
    }
    assert steps == {"train": [2, 4, 5, 6, 8, 9], "evaluation": [3, 5, 6, 9, 9], "attention": [4, 8]}
    train = next(line for line in lines if line["kind"] == "train")
    assert (train["stage"], train["tokens"], train["mfu"]) == ("base", 512, None)
    assert train["learning_rate"] == pytest.approx(3e-3 / 2)
    assert 0 < train["data_seconds"] < train["seconds"]
    attention = next(line for line in lines if line["kind"] == "attention")
    assert len(attention["largest_logit"]) == len(attention["entropy"]) == 2
    assert [list(line["loss"]) for line in lines if line["kind"] == "evaluation"][-1] == ["16", "64"]


def stopping(monkeypatch, at, number=signal.SIGTERM):
    """A signal while batch number `at` of the program is made."""
    made, original = iter(range(1, 1000)), feed.Feed.__next__

    def next_batch(self):
        if next(made) == at:
            signal.raise_signal(number)
        return original(self)

    monkeypatch.setattr(feed.Feed, "__next__", next_batch)


@pytest.mark.parametrize("at", [pytest.param(3, marks=pytest.mark.slow), 5, 8])
def test_a_stopped_run_ends_as_an_unbroken_one(finished, tmp_path, monkeypatch, at):
    config, folder, state = finished
    config = dataclasses.replace(config, output=str(tmp_path))
    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        stopping(patched, at)
        outcome = trained(config)
    assert (outcome.step, outcome.stopped) == (at, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert same(trained(config).state, state)

    def told(folder):
        clocks = ("seconds", "data_seconds", "tokens_per_second")
        lines = lines_of(folder / "metrics.jsonl")
        return [{name: value for name, value in line.items() if name not in clocks} for line in lines]

    assert told(tmp_path / config.name) == told(folder)
    records = [json.loads((where / "record.json").read_text()) for where in (tmp_path / config.name, folder)]
    # All but the commit: the repository may be edited between the two.
    assert records[0] | {"commit": None} == records[1] | {"commit": None}


def test_the_command_says_how_to_go_on(finished, tmp_path, monkeypatch, capsys):
    config = dataclasses.replace(finished[0], output=str(tmp_path))
    path = tmp_path / "run.toml"
    path.write_text(toml(config), encoding="utf-8")
    with monkeypatch.context() as patched:
        stopping(patched, 2, signal.SIGINT)
        assert main([str(path)]) == 130
    said = capsys.readouterr()
    assert "stopped by SIGINT after step 2 of 9; the same command goes on from there" in said.err
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / config.name)


def test_a_checkpoint_of_another_model_is_refused_with_the_fields(copied):
    config, _ = copied
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, embed=32), seed=5)
    with pytest.raises(ValueError, match=r"seed = 0 there, 5 here; model\.embed = 16 there, 32 here\. Set these back"):
        Session(open_run(other))
    watched = dataclasses.replace(config, compute=ComputeConfig(accumulate=2), evaluate=HeldOutConfig(tokens=3000))
    with Session(open_run(watched)) as session:
        assert session.checkpoints.latest == 9


def test_another_text_is_refused(copied, tmp_path):
    config, _ = copied
    source = Path(config.data.sources[0].path).parent
    changed = source / "0.txt"
    kept = changed.read_text()
    try:
        changed.write_text(kept + " more")
        with pytest.raises(ValueError, match=r"`data\.sources` must hold the text that step 9 .* was trained on"):
            Session(open_run(config))
    finally:
        changed.write_text(kept)


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def spoiled(folder, how):
    if how == "truncated":
        path = largest(folder / "model")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "item":
        shutil.rmtree(folder / "opt")
    else:
        (folder / "_CHECKPOINT_METADATA").write_text("{")


@pytest.mark.parametrize("how", ["truncated", "item", "note"])
def test_a_damaged_checkpoint_is_named_with_its_cure(copied, how, capsys):
    config, folder = copied
    step = folder / "checkpoints" / "9"
    spoiled(step, how)
    path = folder / "run.toml"
    path.write_text(toml(config), encoding="utf-8")
    assert main([str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: `checkpoint` must be whole; got step 9 of ") and said.count("\n") == 1
    assert f"Delete the folder {step}: step 8 is used then." in said
    shutil.rmtree(step)
    with Session(open_run(config)) as session:
        assert session.checkpoints.latest == 8
        session.checkpoints.restore(8, {"model": session.abstract["params"]})


def test_too_small_a_disk_is_refused_before_anything_is_written(finished, tmp_path, monkeypatch):
    config = dataclasses.replace(finished[0], output=str(tmp_path / "runs"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=50_000))
    with pytest.raises(OSError, match=r"`checkpoint` must find room for 3 states of .* MiB; got .* MiB free at"):
        Session(open_run(config))
    assert not (tmp_path / "runs").exists()


def test_one_process_at_a_time_trains_in_a_folder(copied):
    config, folder = copied
    with Session(open_run(config)), pytest.raises(RuntimeError, match=rf"nobody else trains in; got {folder}"):
        Session(open_run(config))


def test_divergence_names_the_step_and_the_last_good_checkpoint(finished, tmp_path):
    stages = (StageConfig("base", 16, 20),)
    config = dataclasses.replace(finished[0], output=str(tmp_path), stages=stages)
    config = dataclasses.replace(config, evaluate=HeldOutConfig(every=0, windows=4, tokens=3000))

    spoil, original = iter(range(1, 100)), feed.Feed.__next__

    def next_batch(self):
        batch = original(self)
        if next(spoil) == 6:
            batch["weights"] = batch["weights"] * float("nan")
        return batch

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(feed.Feed, "__next__", next_batch)
        words = (
            r"`loss` must stay finite; got nan at step 6\. .*; the last good checkpoint is step 4 of .*checkpoints\."
        )
        with pytest.raises(FloatingPointError, match=words):
            trained(config)


def test_the_trained_model_goes_to_hugging_face_and_back(tmp_path):
    config = dataclasses.replace(run_config(tmp_path), export=True)
    stages = (dataclasses.replace(config.stages[0], transform="PositionInterpolation(factor=2)"),)
    config = dataclasses.replace(config, stages=stages)
    with Session(open_run(config)) as session:
        outcome = train(session)
        folder = export_run(session.run, outcome.state["params"], session.vocab, session.folder / "export")
        tokens = jax.numpy.asarray(np.frombuffer("naïve text".encode(), np.uint8).astype(np.int32))[None]
        model = nnx.merge(session.undivided, outcome.state["params"])
        positions = jax.numpy.arange(tokens.shape[1])[None]
        expected = model(tokens, stage_schedules(session.run, 0), positions=positions)
    loaded = load_pretrained(folder)
    assert loaded.tokenizer.encode("naïve text").ids == tokens[0].tolist()
    assert loaded.trained_length == 16
    assert np.abs(loaded.logits(tokens) - expected).max() < 2e-5

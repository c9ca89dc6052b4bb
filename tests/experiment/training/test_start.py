"""Runs that go on from a checkpoint: its weights, its rope, its tokenizer, and its form at the end."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.experiment.data import opened
from rope_jax.experiment.settings import ModelConfig
from rope_jax.experiment.training.command import main
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.settings import OptimizerConfig, StageConfig
from rope_jax.experiment.training.stages import factor_of, original_length, stage_schedules, thetas_of
from rope_jax.experiment.training.state import abstract_state, init_state
from rope_jax.huggingface import weights
from rope_jax.parallel import MeshShape, make_mesh
from tests.experiment.training.runs import run_config, toml
from tests.experiment.vocabularies import BOS, VOCAB, parameters, write_checkpoint
from tests.huggingface.weights.families import CONFIGS, random_model

STAGES = (
    StageConfig("as it is", 16, 0),
    StageConfig("stretched", 32, 6, transform="YaRN()"),
    StageConfig("further", 64, 0, transform="YaRN()"),
)


def from_checkpoint(folder: Path, source: str, **changes):
    config = run_config(folder, model=ModelConfig(checkpoint=source), stages=STAGES, export=True)
    return dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=1e-2, warmup=2), **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(config, folder, record) of a run through the command."""
    folder = tmp_path_factory.mktemp("start")
    config = from_checkpoint(folder, write_checkpoint(folder / "model", rope_theta=20_000.0))
    (folder / "run.toml").write_text(toml(config), encoding="utf-8")
    assert main([str(folder / "run.toml")]) == 0
    where = folder / "runs" / "run"
    return config, where, json.loads((where / "record.json").read_text(encoding="utf-8"))


def test_the_first_loss_is_that_of_the_published_weights(finished):
    config, _, record = finished
    model = weights.load_pretrained(config.model.checkpoint)
    run = open_run(dataclasses.replace(config, output=config.output + "-again"))
    with Session(run) as session:
        windows = opened(session.held_out._windows[:, -17:], BOS)
    logits = np.asarray(model.logits(windows[:, :-1]), np.float64)
    picked = np.take_along_axis(logits, windows[:, 1:, None], axis=-1)[..., 0]
    losses = np.log(np.exp(logits).sum(axis=-1)) - picked
    first = record["stages"][0]["evaluation"]["16"]
    assert first["loss"] == pytest.approx(losses.mean(), abs=1e-5)
    assert first["tail"] == pytest.approx(losses[:, -4:].mean(), abs=1e-5)


def test_a_method_stretches_what_the_checkpoint_was_trained_on(finished):
    config, _, record = finished
    assert record["checkpoint"] == {
        "name": "model",
        "digest": weights.digest(config.model.checkpoint),
        "trained_length": 16,
    }
    entries = record["stages"]
    assert [(e["original_length"], e["factor"], e["theta"]) for e in entries] == [
        (16, 1, 2e4),
        (16, 2, 2e4),
        (32, 2, 2e4),
    ]
    wanted = rj.YaRN(factor=2.0, original_length=16, beta_fast=2.0)(rj.geometric_schedule(8, theta=2e4))
    (found,) = entries[1]["schedules"].values()
    np.testing.assert_allclose(found["inv_freq"], wanted.float64(), rtol=1e-12)
    assert all(set(e["evaluation"]) >= {"16"} for e in entries)
    assert entries[1]["evaluation"]["32"]["loss"] < entries[0]["evaluation"]["16"]["loss"] - 0.1


def test_the_export_has_the_form_of_the_checkpoint(finished):
    config, where, _ = finished
    began, ended = weights.load_pretrained(config.model.checkpoint), weights.load_pretrained(where / "export")
    assert ended.decoder.config == began.decoder.config
    # What the method counts from, and what the weights were trained at.
    assert ended.config["rope_parameters"]["original_max_position_embeddings"] == 16
    assert ended.trained_length == ended.config["max_position_embeddings"] == 32
    assert ended.tokenizer.to_str() == began.tokenizer.to_str()
    (spec,) = ended.rope.specs.values()
    assert spec is not None and spec.theta == 2e4
    wanted = rj.YaRN(factor=2.0, original_length=16, beta_fast=2.0)(rj.geometric_schedule(8, theta=2e4))
    np.testing.assert_allclose(spec.schedule().float64(), wanted.float64(), rtol=1e-12)
    assert np.abs(parameters(ended) - parameters(began)).max() > 1e-2
    with Session(open_run(config)) as session:
        (kept,) = session.checkpoints.restore(6, {"model": session.abstract["params"]}).values()
    trained = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(kept)])
    assert np.array_equal(trained, parameters(ended))


def test_a_checkpoint_may_move_and_may_not_change(finished, tmp_path):
    config, where, _ = finished
    shutil.copytree(where, tmp_path / "runs" / "run")
    moved = Path(shutil.copytree(config.model.checkpoint, tmp_path / "elsewhere"))
    config = dataclasses.replace(config, output=str(tmp_path / "runs"), model=ModelConfig(checkpoint=str(moved)))
    with Session(open_run(config)) as session:
        assert session.checkpoints.latest == 6
    other = write_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"`model\.checkpoint` must hold the weights that step 6 of .* got others"):
        Session(open_run(dataclasses.replace(config, model=ModelConfig(checkpoint=other))))


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_can_be_trained_on(family, tmp_path):
    """Its parameters have places on a mesh, and arrive there as they were."""
    model = random_model(family)
    weights.save_pretrained(model, tmp_path / "model")
    config = run_config(tmp_path, model=ModelConfig(checkpoint=str(tmp_path / "model")), stages=STAGES[:1])
    run, mesh = open_run(config), make_mesh(MeshShape(), jax.devices()[:1])
    _, abstract = abstract_state(run, mesh)
    state = init_state(run, mesh)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, abstract)))
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state["params"])])
    assert np.array_equal(found, parameters(model))


def test_a_raised_base_lies_under_the_method_of_the_checkpoint(tmp_path):
    scaling = {"rope_type": "linear", "factor": 2.0}
    source = write_checkpoint(tmp_path / "model", rope_scaling=scaling)
    stages = (StageConfig("raised", 32, 4, theta=1e6),)
    run = open_run(run_config(tmp_path, model=ModelConfig(checkpoint=source), stages=stages))
    assert thetas_of(run, 0) == {"all": 1e6}
    (made,) = (stage_schedules(run, 0) or {}).values()
    assert made is not None
    np.testing.assert_allclose(made.float64(), rj.geometric_schedule(8, theta=1e6).float64() / 2, rtol=1e-12)
    assert (original_length(run, 0), factor_of(run, 0)) == (16, 2.0)


def test_a_run_from_an_export_goes_on_from_the_length_that_it_was_trained_at(tmp_path):
    source = write_checkpoint(tmp_path / "model")
    stages = (StageConfig("raised", 32, 3, theta=1e6),)
    config = from_checkpoint(tmp_path, source, stages=stages)
    (tmp_path / "run.toml").write_text(toml(config), encoding="utf-8")
    assert main([str(tmp_path / "run.toml")]) == 0
    ended = weights.load_pretrained(tmp_path / "runs" / "run" / "export")
    assert ended.trained_length == 32
    assert [spec and spec.theta for spec in ended.rope.specs.values()] == [1e6]
    further = (StageConfig("further", 64, 3, transform="YaRN()"),)
    run = open_run(dataclasses.replace(config, model=ModelConfig(checkpoint=ended.source), stages=further))
    assert (original_length(run, 0), factor_of(run, 0)) == (32, 2.0)


def test_a_length_that_a_method_counts_from_stays_the_longest_position(tmp_path):
    """Readers multiply it by the factor of linear scaling."""
    source = write_checkpoint(tmp_path / "model")
    stages = (StageConfig("interpolated", 32, 3, transform="PositionInterpolation()"),)
    config = from_checkpoint(tmp_path, source, stages=stages)
    (tmp_path / "run.toml").write_text(toml(config), encoding="utf-8")
    assert main([str(tmp_path / "run.toml")]) == 0
    ended = weights.load_pretrained(tmp_path / "runs" / "run" / "export")
    assert (ended.trained_length, ended.config["max_position_embeddings"]) == (32, 16)


def without_tokenizer(folder: Path) -> str:
    source = write_checkpoint(folder / "bare")
    (folder / "bare" / "tokenizer.json").unlink()
    return source


def test_what_was_learned_has_been_edited_by_the_method_of_the_checkpoint_already(tmp_path):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    source = write_checkpoint(tmp_path / "model", rope_scaling=scaling)
    stages = (
        StageConfig("learn", 32, 4, learnable=True),
        StageConfig("kept", 32, 4),
        StageConfig("halved", 64, 4, transform="PositionInterpolation()"),
    )
    run = open_run(run_config(tmp_path, model=ModelConfig(checkpoint=source), stages=stages))
    (own,) = (stage_schedules(run, 0) or {}).values()
    assert own is not None and own.attention_scale > 1.1
    learned = {"all": np.log(own.float64()) + np.array([0.1, -0.2, 0.3, 0.0])}
    for index, factor in ((1, 1), (2, 2)):
        (made,) = (stage_schedules(run, index, learned=learned) or {}).values()
        assert made is not None
        np.testing.assert_allclose(made.float64(), np.exp(learned["all"]) / factor, rtol=1e-12)
        assert made.attention_scale == own.attention_scale


REFUSED = {
    "no such folder": (lambda f: "nothing/here", {}, "`model.checkpoint`, nothing/here: "),
    "a shape beside it": (
        lambda f: write_checkpoint(f / "m"),
        {"embed": 64},
        "`model.embed` must be left out with model.checkpoint",
    ),
    "no tokenizer": (without_tokenizer, {}, "`data.tokenizer` must be a folder with a tokenizer.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_that_cannot_be_trained_on_is_refused_in_one_line(case, tmp_path, capsys):
    make, shape, words = REFUSED[case]
    config = from_checkpoint(tmp_path, make(tmp_path))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, **shape))
    (tmp_path / "run.toml").write_text(toml(config), encoding="utf-8")
    assert main([str(tmp_path / "run.toml")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith(f"error: {words}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("family", ["gemma2", "qwen2"])
def test_what_the_form_of_the_checkpoint_cannot_state_is_refused_before_the_first_step(family, tmp_path):
    """Some layers stretched and others not, where the model type has one rotary setting for all."""
    weights.save_pretrained(random_model(family, hidden_size=32), tmp_path / "model")
    stages = (StageConfig("stretched", 64, 6, transform="YaRN()"),)
    config = from_checkpoint(tmp_path, str(tmp_path / "model"), stages=stages)
    with pytest.raises(ValueError, match=r"^`export` must be false with the method of stages\[0\]; got true: `rope` "):
        open_run(config)
    together = dataclasses.replace(stages[0], transform="YaRN() @ all")
    assert open_run(dataclasses.replace(config, stages=(together,))).config.export
    assert open_run(dataclasses.replace(config, export=False)).starts_trained


def test_settings_that_a_checkpoint_leaves_no_choice_of(tmp_path):
    source = write_checkpoint(tmp_path / "model")
    with pytest.raises(ValueError, match=r"`vocab` must be left out with model\.checkpoint"):
        open_run(from_checkpoint(tmp_path, source, vocab=VOCAB))
    weights.save_pretrained(random_model("gemma3"), tmp_path / "gemma3")
    raised = (StageConfig("raised", 32, 4, theta=1e6),)
    with pytest.raises(ValueError, match=r"`stages\[0\]\.theta` must be left out where layer groups have bases"):
        open_run(run_config(tmp_path, model=ModelConfig(checkpoint=str(tmp_path / "gemma3")), stages=raised))
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
    stretched = write_checkpoint(tmp_path / "yarn", rope_scaling=scaling)
    with pytest.raises(ValueError, match=r"YaRN\(\): .* has been edited by YaRN already, .* take the rope scaling out"):
        open_run(from_checkpoint(tmp_path, stretched))
    wide = write_checkpoint(tmp_path / "wide", vocab_size=VOCAB + 40)
    narrow = from_checkpoint(tmp_path, str(tmp_path / "gemma3"), export=False)
    narrow = dataclasses.replace(narrow, data=dataclasses.replace(narrow.data, tokenizer=wide))
    with pytest.raises(ValueError, match=rf"`data\.tokenizer` must give ids below the 20 rows .* got {VOCAB} tokens"):
        Session(open_run(narrow))

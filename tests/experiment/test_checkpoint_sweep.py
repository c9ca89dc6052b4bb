"""A sweep over a checkpoint: what its rows are measured with, and what they say of it."""

import dataclasses
import html
import io
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rope_jax import NTKAware, RopeSpec, YaRN, chain
from rope_jax.experiment import evaluate
from rope_jax.experiment.config import (
    DataConfig,
    EvaluateConfig,
    ExperimentConfig,
    ModelConfig,
    SweepConfig,
    TrainConfig,
)
from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.plan import plan
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.published import subject_of
from rope_jax.experiment.report import write_report
from rope_jax.experiment.results import read_results
from rope_jax.experiment.sweep import Sweep
from rope_jax.huggingface import weights
from tests.experiment.tiny import run, write_corpus
from tests.experiment.vocabularies import BOS, config_for, parameters, write_checkpoint


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A finished zero-shot sweep: (config, rows)."""
    config = config_for(tmp_path_factory.mktemp("zero"))
    assert run(config).finished == 7
    return config, read_results(Path(config.output) / "sweep")


def test_the_plan_has_no_training(swept):
    config, rows = swept
    assert [(row["metric"], row["method"], row["factor"], row["length"]) for row in rows] == [
        ("truncated_loss", "truncated", 1.0, 32),
        ("loss", "Identity()", 1.0, 8),
        ("loss", "Identity()", 1.0, 16),
        ("loss", "Identity()", 1.0, 32),
        ("loss", "YaRN(beta_fast=2.0)", 1.0, 8),
        ("loss", "YaRN(beta_fast=2.0)", 1.0, 16),
        ("loss", "YaRN(beta_fast=2.0)", 2.0, 32),
    ]
    assert len(plan(config)) == len(rows)


def test_rows_name_the_checkpoint(swept):
    config, rows = swept
    model = weights.load_pretrained(config.model.checkpoint)
    wanted = {"name": "model", "digest": weights.digest(config.model.checkpoint), "trained_length": 16, "bos": BOS}
    assert all(row["checkpoint"] == wanted | {"parameters": parameters(model).size} for row in rows)
    assert len({row["corpus"] for row in rows}) == 1


def test_losses_are_those_of_the_published_weights_behind_one_bos(swept):
    config, rows = swept
    model = weights.load_pretrained(config.model.checkpoint)
    tokens = Laboratory(config, Path(config.output), Reporter())._task(0).questions(32).tokens
    assert np.all(tokens[:, 0] == BOS)
    for row, rope in ((rows[3], None), (rows[6], YaRN(factor=2.0, original_length=16, beta_fast=2.0))):
        changed = None
        if rope is not None:
            spec = RopeSpec(8, theta=1e4, transform=rope)
            changed = dataclasses.replace(model.rope, specs={"all": spec})
        logits = np.asarray(model.logits(tokens[:, :-1], rope=changed), np.float64)
        picked = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        losses = np.log(np.exp(logits).sum(axis=-1)) - picked
        assert row["mean"] == pytest.approx(losses.mean(), abs=1e-5)
        assert row["value"] == pytest.approx(losses[:, -4:].mean(), abs=1e-5)


def test_a_window_that_nothing_is_cut_from_is_its_own_baseline(swept):
    _, rows = swept
    assert set(rows[0]["tails_within"]) == {"8", "16"}
    plain = [row for row in rows if row["method"] == "Identity()"]
    assert [row["context_gain"] for row in plain[:2]] == [0.0, 0.0]
    assert plain[0]["truncated"] != plain[1]["truncated"]
    assert plain[2]["truncated"] == rows[0]["value"] == pytest.approx(np.mean(rows[0]["tails"]))
    # The tail of a stride sees the last 16 tokens: the window of 16, BOS included.
    assert rows[0]["value"] == pytest.approx(plain[1]["value"], abs=1e-6)


def test_other_weights_under_the_same_path_never_join_its_rows(swept, tmp_path):
    config, _ = swept
    shutil.copytree(Path(config.output), tmp_path / "runs")
    shutil.copytree(config.model.checkpoint, tmp_path / "model")
    moved = dataclasses.replace(
        config, output=str(tmp_path / "runs"), model=ModelConfig(checkpoint=str(tmp_path / "model"))
    )
    assert run(moved).finished == 0
    shutil.rmtree(tmp_path / "model")
    write_checkpoint(tmp_path / "model", seed=1)
    with pytest.raises(ValueError, match=r"`model.checkpoint` must lead to the checkpoint of the finished rows"):
        Sweep(moved)


def test_another_trained_length_is_said_and_kept(tmp_path):
    config = config_for(tmp_path, sweep=SweepConfig(multiples=(1,)), train=TrainConfig(length=32, steps=0))
    said = io.StringIO()
    with Sweep(config, reporter=Reporter(Console(file=said, width=200))) as sweep:
        sweep.run()
    assert "note: model gives 16 tokens for its trained length; train.length = 32 is taken for it." in said.getvalue()
    (row, _) = read_results(tmp_path / "runs" / "sweep")
    assert (row["trained_length"], row["checkpoint"]["trained_length"]) == (32, 16)


@pytest.mark.parametrize(
    ("rope", "method", "message"),
    [
        (
            {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "YaRN()",
            "`sweep.methods.1.`, YaRN",
        ),
        (None, "Rescale(factors=(1, 2))", "4 for rotary_dim 8"),
    ],
)
def test_what_cannot_be_built_on_its_rope_is_refused_before_weights_are_read(
    tmp_path, monkeypatch, rope, method, message
):
    monkeypatch.setattr(weights, "load_pretrained", None)
    config = config_for(tmp_path, sweep=SweepConfig(methods=("Identity()", method), multiples=(1, 2)))
    if rope is not None:
        shutil.rmtree(tmp_path / "model")
        scaling = rope | {"factor": 4.0, "original_max_position_embeddings": 16}
        write_checkpoint(tmp_path / "model", rope_scaling=scaling, max_position_embeddings=64)
    with pytest.raises(ValueError, match=message):
        Sweep(config)
    assert not Path(config.output).exists()


def test_methods_come_on_top_of_its_own_rope_and_leave_short_windows_alone(tmp_path):
    types = ["sliding_attention", "full_attention"]
    changes: dict[str, Any] = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    changes |= {"sliding_window": 8, "layer_types": types, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    write_checkpoint(tmp_path / "model", **changes)
    write_corpus(tmp_path / "corpus")
    subject = subject_of(config_for(tmp_path))
    assert subject.rope is not None
    assert subject.edited() == ("full_attention",)
    method = NTKAware(factor=2.0)
    composed = subject.composed(method)
    assert composed is not None
    own = subject.rope.specs["sliding_attention"]
    assert composed.specs["sliding_attention"] == own is not None
    spec = composed.specs["full_attention"]
    assert spec is not None and own is not None
    assert spec.transform == chain(own.transform, method) != own.transform


def test_passkeys_in_words_are_asked_of_it(tmp_path):
    config = config_for(
        tmp_path,
        data=DataConfig(task="passkey", key_length=5),
        train=TrainConfig(length=256, steps=0),
        sweep=SweepConfig(methods=("Identity()",), multiples=(1,)),
        evaluate=EvaluateConfig(depths=2, trials=1, batch=2),
    )
    assert run(config).finished == 1
    (row,) = read_results(tmp_path / "runs" / "sweep")
    assert (row["count"], row["keys"], row["chance"]) == (10, 2, pytest.approx(0.1))
    assert row["corpus"] is None
    page = html.unescape(write_report(tmp_path / "runs" / "sweep").read_text(encoding="utf-8"))
    assert "digits at random" in page
    assert "Share of the key's tokens found" in page
    with pytest.raises(ValueError, match="must hold the passkey's instruction, needle and question"):
        Sweep(dataclasses.replace(config, train=TrainConfig(length=64, steps=0), name="short"))


def test_the_page_says_whose_weights_they_are(swept):
    config, rows = swept
    page = write_report(Path(config.output) / "sweep").read_text(encoding="utf-8")
    assert f"Checkpoint model: {rows[0]['checkpoint']['parameters'] / 1000:.3g}" in page
    assert "trained at 16 tokens" in page
    assert "nats per token of its own tokenizer. Every window opens with its BOS, id 1." in page
    assert "Identity (as published)" in page
    assert rows[0]["checkpoint"]["digest"] in page
    # Settings of a model that is trained here are none of a checkpoint's.
    assert config.model.checkpoint in page
    assert "head_dim" not in page


@pytest.mark.slow
def test_a_trained_model_gives_the_losses_known_of_it(shared):
    folder = shared / "data" / "stories260K"
    known = json.loads((folder / "extension.json").read_text(encoding="utf-8"))
    windows, bins = np.asarray(known["windows"], np.int32), known["bins"]
    config = ExperimentConfig(
        name="a", model=ModelConfig(checkpoint=str(folder)), train=TrainConfig(length=512, steps=0)
    )
    laboratory = Laboratory(
        dataclasses.replace(config, data=DataConfig(task="passkey", key_length=1)), folder, Reporter()
    )
    cells = {"none": chain(), "NTK s=2": NTKAware(factor=2.0)}
    cells |= {f"YaRN s={s}": YaRN(factor=float(s), original_length=512) for s in (2, 4)}
    params = laboratory._published.params if laboratory._published else None
    for name, method in cells.items():
        schedules = laboratory.subject.schedules(method, length=2048)
        losses, _ = evaluate.score(laboratory._step, params, schedules, windows, 3)
        got = [losses[:, low:high].mean() for low, high in itertools.pairwise(bins)]
        assert [*got, losses.mean()] == pytest.approx(known["losses"][name], abs=0.005)

"""Settings of a sweep over a checkpoint, and the command line that gives them."""

import dataclasses
from typing import Any

import pytest

from rope_jax.experiment.arguments import read_arguments
from rope_jax.experiment.config import (
    DataConfig,
    ExperimentConfig,
    FinetuneConfig,
    ModelConfig,
    SweepConfig,
    TrainConfig,
    config_hash,
    validate,
)
from rope_jax.experiment.defaults import checkpoint_config
from rope_jax.experiment.sweep import Sweep
from tests.experiment.vocabularies import write_checkpoint

STARTED = ExperimentConfig(name="a", model=ModelConfig(checkpoint="somewhere"), train=TrainConfig(steps=0))
TUNED = FinetuneConfig(steps=40, methods=("YaRN()",))


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"model": ModelConfig(checkpoint="somewhere", embed=64)}, "model.embed"),
        ({"model": ModelConfig(checkpoint="somewhere", windows={"G": 8})}, "model.windows"),
        ({"model": ModelConfig(checkpoint="somewhere", theta=5e5)}, "model.theta"),
        ({"train": TrainConfig(steps=1)}, "train.steps"),
        ({"seeds": (0, 1)}, "seeds"),
        ({"finetune": FinetuneConfig(export=True)}, "finetune.export"),
        ({"data": DataConfig(task="passkey", key_symbols=16)}, "data.key_symbols"),
        ({"data": DataConfig(task="passkey", filler_symbols=8)}, "data.filler_symbols"),
        ({"data": DataConfig(held_out_tokens=100), "finetune": TUNED}, "data.held_out_tokens"),
    ],
)
def test_what_has_no_effect_with_a_checkpoint_is_refused(change, setting):
    with pytest.raises(ValueError, match=rf"^`{setting.replace('.', '[.]')}` must .*; got .*\. .*\.$"):
        validate(dataclasses.replace(STARTED, **change))


@pytest.mark.parametrize(
    "change", [{"train": TrainConfig(steps=0)}, {"finetune": dataclasses.replace(TUNED, export=True)}]
)
def test_without_a_checkpoint_something_is_trained_and_nothing_exported(change):
    with pytest.raises(ValueError, match=r"^`(train.steps|finetune.export)` must "):
        validate(dataclasses.replace(ExperimentConfig(name="a"), **change))


@pytest.mark.parametrize(
    "change",
    [
        {"model": ModelConfig(checkpoint="somewhere", remat=True, dtype="bfloat16")},
        {"data": DataConfig(task="passkey"), "seeds": (0, 1)},
        {"data": DataConfig(held_out_tokens=1)},
        {"finetune": dataclasses.replace(TUNED, export=True), "seeds": (0, 1)},
        {"sweep": SweepConfig(multiples=(0.25, 0.5, 1, 1.75))},
    ],
)
def test_the_edges_of_the_rules_are_allowed(change):
    validate(dataclasses.replace(STARTED, **change))


def test_the_hash_is_not_of_the_path_but_of_the_lengths_that_the_baseline_is_measured_at():
    def of(**changes: Any) -> str:
        return config_hash(dataclasses.replace(STARTED, **changes))

    assert of(model=ModelConfig(checkpoint="elsewhere")) == of()
    assert of(finetune=FinetuneConfig(export=True)) == of()
    assert of(sweep=SweepConfig(multiples=(1, 1.5, 8))) == of()
    assert of(sweep=SweepConfig(multiples=(0.5, 1, 8))) != of()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("published") / "tiny")


def test_a_checkpoint_alone_has_a_whole_sweep(checkpoint):
    config = read_arguments(["--checkpoint", checkpoint]).config
    assert config == checkpoint_config(checkpoint)
    assert (config.name, config.model.checkpoint, config.data.source) == ("tiny", checkpoint, "stdlib")
    assert (config.train.length, config.train.steps, config.evaluate.truncation_stride) == (16, 0, 4)
    assert config.sweep.lengths(16) == (16, 32, 64)
    assert [method.partition("(")[0] for method in config.sweep.methods] == [
        *("Identity", "PositionInterpolation", "NTKAware", "YaRN")
    ]
    assert config.evaluate.loss_chunk == 512


def test_a_rope_that_is_not_geometric_gets_the_methods_that_can_be_built_on_it(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 16}
    folder = write_checkpoint(tmp_path / "scaled", rope_scaling=scaling, max_position_embeddings=64)
    config = read_arguments(["--checkpoint", folder]).config
    assert config.train.length == 16
    assert 'YaRN(ramp="turns")' in config.sweep.methods
    assert "YaRN()" not in config.sweep.methods


def test_what_is_left_out_of_the_methods_is_said_unless_methods_are_written(tmp_path, checkpoint):
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 16}
    folder = write_checkpoint(tmp_path / "scaled", rope_scaling=scaling, max_position_embeddings=64)
    ntk, yarn = read_arguments(["--checkpoint", folder]).notes
    assert ntk.startswith("NTKAware() cannot be built on the checkpoint's own rope, so it is left out: NTKAware must")
    assert yarn.startswith(
        'YaRN() cannot be built on the checkpoint\'s own rope, so YaRN(ramp="turns") stands in for it'
    )
    assert read_arguments(["--checkpoint", folder, "--sweep.methods", "Identity()"]).notes == ()
    assert read_arguments(["--checkpoint", checkpoint]).notes == ()


def test_the_checkpoint_is_opened_once_for_its_settings_and_the_sweep(checkpoint, tmp_path, monkeypatch):
    from rope_jax.huggingface.weights import checkpoint as module

    opened = []
    really = module.open_checkpoint

    def counted(source):
        opened.append(source)
        return really(source)

    monkeypatch.setattr(module, "open_checkpoint", counted)
    text = tmp_path / "a.txt"
    text.write_text("a text " * 40, encoding="utf-8")
    words = ["--checkpoint", checkpoint, "--text", str(text), "--output", str(tmp_path), "--evaluate.windows", "2"]
    request = read_arguments([*words, "--train.length", "8"])
    assert request.subject is not None and request.subject.trained_length == 8
    with Sweep(request.config, request.subject) as sweep:
        assert sweep.subject is request.subject
    assert opened == [checkpoint]
    # Another checkpoint behind it is not taken for the first.
    other = write_checkpoint(tmp_path / "other", max_position_embeddings=32)
    assert read_arguments([*words, "--model.checkpoint", other]).subject is None


@pytest.mark.parametrize("words", [["--checkpoint", "C", "--text", "a.txt"], ["--text=a.txt", "--checkpoint=C"]])
def test_overrides_work_on_top_in_any_order(checkpoint, words):
    words = [word.replace("C", checkpoint) if word.endswith("C") else word for word in words]
    config = read_arguments([*words, "--sweep.multiples", "0.5", "1", "--evaluate.windows", "3"]).config
    assert config.data.source == "a.txt"
    assert config.sweep.multiples == (0.5, 1.0)
    assert config.evaluate.windows == 3


def test_a_file_takes_both_too(checkpoint, tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text('name = "a"\n[model]\ncheckpoint = "b"\n[train]\nsteps = 0\nlength = 32', encoding="utf-8")
    assert read_arguments([str(path)]).config.model.checkpoint == "b"
    config = read_arguments(["--checkpoint", checkpoint, str(path), "--text", "a.txt", "--train.length", "16"]).config
    assert (config.name, config.model.checkpoint, config.data.source) == ("a", checkpoint, "a.txt")
    assert config.train.length == 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "a.txt"], r"`config` must come first; got '--text'"),
        (["--checkpoint"], "`--checkpoint` must be followed by its value; got nothing"),
        (["--checkpoint", "--text", "a"], "`--checkpoint` must be followed by its value"),
        (["--text", "a", "--text", "b"], "`--text` must be given once"),
        (["--checkpoint", "absent/folder"], "absent/folder"),
        (["--checkpoint", ""], "`--checkpoint` must be followed by its value; got an empty one"),
        (["--text="], "`--text` must be followed by its value; got an empty one"),
        (["."], "got the folder '.'. Name a TOML file, or write --checkpoint in front"),
    ],
)
def test_words_that_say_nothing_clear_are_refused(words, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((ValueError, OSError), match=message):
        read_arguments(words)

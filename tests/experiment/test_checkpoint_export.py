"""A checkpoint tuned in a sweep, and what comes back from it in Hugging Face form."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rope_jax import YaRN
from rope_jax.experiment.config import FinetuneConfig, ModelConfig, SweepConfig
from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.plan import plan
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.results import read_results
from rope_jax.experiment.sweep import Sweep
from rope_jax.huggingface import weights
from tests.experiment.tiny import run
from tests.experiment.vocabularies import config_for, parameters
from tests.huggingface.weights.families import random_model


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A finished sweep with a fine-tune and its export: (config, outcome, rows)."""
    tuning = FinetuneConfig(steps=3, multiple=2, warmup=1, methods=("YaRN()",), export=True)
    sweep = SweepConfig(methods=("Identity()",), multiples=(1, 2))
    config = config_for(tmp_path_factory.mktemp("tuned"), finetune=tuning, sweep=sweep)
    return config, run(config), read_results(Path(config.output) / "sweep")


def test_a_tuned_checkpoint_comes_back_with_the_weights_and_the_rope_it_was_tuned_with(tuned):
    config, outcome, rows = tuned
    (folder,) = outcome.exported
    assert folder.parent == Path(config.output) / "sweep" / "exports"
    model = weights.load_pretrained(folder)
    spec = model.rope.specs["all"]
    assert spec is not None
    assert spec.transform == YaRN(factor=2.0, original_length=16, beta_fast=2.0)
    before = parameters(weights.load_pretrained(config.model.checkpoint))
    assert not np.array_equal(parameters(model), before)
    # The same numbers as in the table, from the folder alone.
    row = next(row for row in rows if row.get("tuned_method") and row["metric"] == "loss" and row["length"] == 32)
    tokens = Laboratory(config, folder, Reporter())._task(0).questions(32).tokens
    logits = np.asarray(model.logits(tokens[:, :-1]), np.float64)
    losses = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    assert row["mean"] == pytest.approx(losses.mean(), abs=1e-5)


def test_an_export_that_was_cut_off_is_made_whole_by_the_next_start(tuned):
    config, outcome, _ = tuned
    (folder,) = outcome.exported
    written = (folder / "model.safetensors").read_bytes()
    os_draft = folder.with_name(f".{folder.name}.draft")
    folder.rename(os_draft)
    (os_draft / "model.safetensors").write_bytes(b"half")
    again = run(config)
    assert (again.finished, again.exported) == (0, (folder,))
    assert (folder / "model.safetensors").read_bytes() == written
    assert not os_draft.exists()


def test_what_no_configuration_states_is_not_tuned_for_export(tmp_path):
    tuning = FinetuneConfig(steps=3, multiple=2, warmup=1, methods=("Drop()",), export=True)
    with pytest.raises(ValueError, match=r"^`finetune.methods.0.`, Drop\(\): .*frequency of 0 at pair 0"):
        Sweep(config_for(tmp_path, finetune=tuning))
    assert not (tmp_path / "runs").exists()


def test_what_the_form_of_the_checkpoint_cannot_state_is_not_tuned_for_export(tmp_path):
    config = config_for(tmp_path)
    weights.save_pretrained(random_model("gemma2", hidden_size=32), tmp_path / "windows")
    tuning = FinetuneConfig(steps=3, multiple=2, warmup=1, methods=("YaRN()",), export=True)
    model = ModelConfig(checkpoint=str(tmp_path / "windows"))
    with pytest.raises(ValueError, match=r"^`finetune.methods.0.`, YaRN\(\): `rope` must turn all layers alike"):
        plan(replace(config, model=model, finetune=tuning))


def test_tuning_rows_count_what_was_tuned_on(tuned):
    _, _, rows = tuned
    (training,) = [row for row in rows if row["metric"] == "training"]
    assert (training["phase"], training["tokens"], training["steps"]) == ("tuned", 3 * 4 * 16, 3)

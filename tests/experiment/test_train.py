"""Training: the loss falls, a resumed run equals an unbroken one, one step serves every schedule."""

import copy
import dataclasses
import itertools

import chex
import jax
import numpy as np
import optax
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax.experiment import train
from rope_jax.experiment.evaluate import token_losses
from rope_jax.experiment.model import group_schedules, make_decoder
from rope_jax.experiment.tasks import Batch, make_task
from rope_jax.experiment.training import loss as loss_of_step
from tests.experiment.tiny import passkey_config


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    config = passkey_config(tmp_path_factory.mktemp("train"))
    task = make_task(config, seed=0, longest=32)
    graphdef, params = nnx.split(make_decoder(config, vocab=task.vocab, seed=0))
    schedules = group_schedules(config, rj.Identity(), length=16)
    # Losses are all that is counted: this is where a step is traced.
    counted = chex.assert_max_traces(token_losses, n=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_of_step, "token_losses", counted)
        yield train.Trainer(config, train.base_stage(config), graphdef), params, schedules, task


def test_training_learns_reports_and_keeps_the_weights_it_was_given(start, tmp_path):
    trainer, params, schedules, task = start
    seen = []
    before = jax.tree.map(np.asarray, params)
    trained = trainer.run(params, schedules, task, tmp_path / "a", lambda step, loss: seen.append((step, loss)))
    chex.assert_trees_all_equal(before, jax.tree.map(np.asarray, params))
    assert [step for step, _ in seen] == [0, 2, 3, 4, 6]
    assert seen[-1][1] == trained.loss < seen[1][1]
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, trained.params)
    assert min(jax.tree.leaves(moved)) > 0


def test_a_stopped_run_goes_on_to_the_same_bits(start, tmp_path):
    trainer, params, schedules, task = start
    whole = trainer.run(params, schedules, task, tmp_path / "whole")

    def stop(step, loss):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run(params, schedules, task, tmp_path / "broken", stop)
    seen = []
    resumed = trainer.run(params, schedules, task, tmp_path / "broken", lambda step, loss: seen.append((step, loss)))
    assert seen[0] == (3, None)
    assert resumed.loss == whole.loss
    chex.assert_trees_all_equal(resumed.params, whole.params)
    # A finished stage only loads; its loss is known.
    loaded = trainer.run(params, schedules, task, tmp_path / "broken", lambda step, loss: seen.append((step, loss)))
    assert seen[-1] == (6, None)
    assert loaded.loss == whole.loss
    chex.assert_trees_all_equal(loaded.params, whole.params)


def test_the_schedule_is_an_argument(start, tmp_path):
    # The fixture allows one trace for all of these tests.
    trainer, params, schedules, task = start
    other = group_schedules(trainer.config, rj.PositionInterpolation(factor=8.0), length=16)
    losses = [trainer.run(params, chosen, task, tmp_path / str(i)).loss for i, chosen in enumerate((schedules, other))]
    assert losses[0] != losses[1]


def test_a_loss_that_is_not_finite_stops_and_names_the_step(start, tmp_path):
    trainer, params, schedules, task = start

    def poisoned_batch(step, length, batch):
        tokens, weights = task.train_batch(step, length, batch)
        return Batch(tokens, weights * (np.float32("nan") if step == 4 else np.float32(1)))

    poisoned = copy.copy(task)
    poisoned.train_batch = poisoned_batch
    with pytest.raises(FloatingPointError, match=r"`loss` must stay finite; got nan at step 5\. .*learning_rate"):
        trainer.run(params, schedules, poisoned, tmp_path / "nan")
    # What was saved before is sound: the run can go on from there.
    assert trainer.run(params, schedules, task, tmp_path / "nan").loss > 0


def test_fine_tuning_keeps_the_tokens_of_a_step_and_meets_new_batches(tmp_path):
    config = passkey_config(tmp_path)
    config = dataclasses.replace(config, finetune=dataclasses.replace(config.finetune, steps=5, multiple=4))
    base, tuning = train.base_stage(config), train.tuning_stage(config)
    assert (base.length, base.batch, base.first_batch) == (16, 8, 0)
    assert (tuning.length, tuning.batch, tuning.first_batch) == (64, 2, base.steps)
    assert tuning.tokens / tuning.steps == base.tokens / base.steps
    assert tuning.learning_rate == config.finetune.learning_rate


def test_rates_warm_up_and_fall_clips_hold_and_only_matrices_decay(tmp_path):
    config = passkey_config(tmp_path)
    settings = dataclasses.replace(config.train, steps=10, warmup=4, final_fraction=0.1, weight_decay=0.5, clip=1e-3)
    config = dataclasses.replace(config, train=settings)
    _, params = nnx.split(make_decoder(config, vocab=11, seed=0))
    transformation = train.optimizer(config, train.base_stage(config))
    with jax.numpy_dtype_promotion("standard"):
        check_rates(transformation, params, config.train)
        large = jax.tree.map(lambda x: 1e3 * np.ones_like(x), params)
        _, (_, (adam, *_)) = transformation.update(large, transformation.init(params), params)
        np.testing.assert_allclose(optax.tree.norm(adam.mu), 0.1 * settings.clip, rtol=1e-4)


def check_rates(transformation, params, settings):
    state = transformation.init(params)
    zero = jax.tree.map(np.zeros_like, params)
    rates = []
    for _ in range(11):
        updates, state = transformation.update(zero, state, params)
        # Without a gradient only decay moves a weight: -rate * decay * weight.
        embedding = np.asarray(updates["embedding"][...]) / np.asarray(params["embedding"][...])
        rates.append(float(-embedding.mean() / settings.weight_decay))
        assert not np.any(updates["norm"]["scale"][...])
    peak = settings.learning_rate
    np.testing.assert_allclose(rates[:5], np.linspace(0, peak, 5), rtol=1e-5, atol=1e-9)
    assert all(late < early for early, late in itertools.pairwise(rates[4:]))
    np.testing.assert_allclose(rates[10], 0.1 * peak, rtol=1e-5)

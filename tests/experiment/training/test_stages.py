"""What turns queries and keys in each stage, and how fast each learns."""

import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.experiment.settings import ModelConfig
from rope_jax.experiment.training.config import load_run
from rope_jax.experiment.training.optimizer import learning_rate, stage_optimizer, stage_starts
from rope_jax.experiment.training.rules import check_mesh, open_run
from rope_jax.experiment.training.settings import ComputeConfig, OptimizerConfig, RunConfig, StageConfig
from rope_jax.experiment.training.stages import factor_of, learned_before, original_length, stage_schedules, thetas_of
from rope_jax.experiment.training.start import started
from rope_jax.experiment.training.transitions import entered
from tests.experiment.training.runs import MODEL, run_config, toml

LADDER = (
    StageConfig("base", 16, 10),
    StageConfig("raised", 64, 6, theta=100_000.0),
    StageConfig("reach", 128, 0, transform="YaRN(beta_fast=2)"),
)


def config(stages=LADDER, **changes):
    model = changes.pop("model", MODEL)
    return RunConfig("run", stages, tokens_per_batch=256, model=model, optimizer=OptimizerConfig(warmup=2), **changes)


def test_a_stage_goes_on_from_the_base_and_length_of_those_before():
    ladder = started(config())
    assert [thetas_of(ladder, i)["G"] for i in range(3)] == [10_000.0, 100_000.0, 100_000.0]
    assert [original_length(ladder, i) for i in range(3)] == [16, 16, 64]
    assert [factor_of(ladder, i) for i in range(3)] == [1.0, 4.0, 2.0]
    plain, yarn = rj.geometric_schedule(8, theta=100_000.0), rj.YaRN(factor=2.0, original_length=64, beta_fast=2)
    made = stage_schedules(ladder, 2)
    assert made is not None and made["G"] is not None
    assert np.array_equal(made["G"].float64(), yarn(plain).float64())
    assert float(made["G"].attention_scale) == pytest.approx(0.1 * math.log(2) + 1)


def test_a_method_edits_the_layers_that_it_names():
    """With learned frequencies, too."""
    model = replace(MODEL, pattern="LG", windows={"L": 4}, thetas={"L": 500.0})
    stages = (StageConfig("base", 16, 4), StageConfig("far", 64, 4, transform="YaRN() @ full"))
    ladder = started(config(stages, model=model))
    plain = {group: rj.geometric_schedule(8, theta=theta) for group, theta in (("L", 500.0), ("G", 10_000.0))}
    yarn = rj.YaRN(factor=4.0, original_length=16, beta_fast=2)
    wanted = {"L": plain["L"].float64(), "G": yarn(plain["G"]).float64()}
    learned = {group: np.log(schedule.float64()) for group, schedule in plain.items()}
    for made in (stage_schedules(ladder, 1), stage_schedules(ladder, 1, learned=learned)):
        found: Any = made
        assert {group: schedule.stack for group, schedule in found.items()} == {"L": (), "G": ()}
        for group, inv_freq in wanted.items():
            np.testing.assert_allclose(found[group].float64(), inv_freq, rtol=1e-12)
    with pytest.raises(ValueError, match=r"`stages\[1\]\.theta` must be left out where layer groups have bases"):
        open_run(config((stages[0], StageConfig("far", 64, 4, theta=1e6)), model=model))


def test_a_method_edits_what_was_learned():
    stages = (*LADDER[:1], StageConfig("learn", 32, 4, learnable=True), StageConfig("halved", 64, 4))
    ladder = started(config(stages))
    assert [learned_before(ladder, i) for i in range(3)] == [False, False, True]
    learned = {"G": np.log([0.9, 0.2, 0.03, 0.001])}
    made = stage_schedules(ladder, 2, learned=learned)
    assert made is not None and made["G"] is not None
    assert np.allclose(made["G"].float64(), [0.9, 0.2, 0.03, 0.001], rtol=1e-12)
    fresh = started(config((*stages[:2], StageConfig("anew", 64, 4, theta=50_000.0))))
    assert not learned_before(fresh, 2)


def test_one_cosine_runs_over_stages_that_continue():
    rate, alone = learning_rate(config()), learning_rate(config((StageConfig("one", 16, 16),)))
    assert [float(rate(step)) for step in range(16)] == [float(alone(step)) for step in range(16)]
    assert float(rate(2)) == pytest.approx(3e-3)
    assert float(rate(16)) == pytest.approx(3e-3 * 0.05)


def test_a_rewarmed_stage_has_a_curve_of_its_own():
    stages = (LADDER[0], StageConfig("again", 64, 6, schedule="rewarmed", learning_rate=1e-3, warmup=1))
    rate = learning_rate(config(stages))
    assert float(rate(9)) > 3e-3 * 0.05
    assert [float(rate(step)) for step in (10, 11, 16)] == pytest.approx([0.0, 1e-3, 1e-3 * 0.05])


@pytest.mark.parametrize("kept", [True, False])
def test_moments_are_kept_or_reset_and_the_rate_goes_on(kept):
    stages = (LADDER[0], StageConfig("next", 64, 6, optimizer="kept" if kept else "reset"))
    ladder = config(stages)
    params = {"kernel": jax.numpy.ones((2, 2))}
    first = stage_optimizer(ladder, 0)
    # As in the step, since optax mixes counts with floats.
    with jax.numpy_dtype_promotion("standard"):
        opt = first.init(params)
        for _ in range(10):
            _, opt = first.update(params, opt, params)
        state = entered(started(ladder), 1, {"params": params, "opt": opt})
        updates, _ = stage_optimizer(ladder, 1).update(params, state["opt"], params)
    moments = [leaf for leaf in jax.tree.leaves(state["opt"]) if leaf.ndim]
    assert moments and all(np.any(np.asarray(leaf) != 0) == kept for leaf in moments)
    # The gradient is what it always was, so Adam's step is the rate: that of step 10 of the run either way.
    expected = float(learning_rate(ladder)(10)) * (1 + 0.1)
    assert -float(updates["kernel"][0, 0]) == pytest.approx(expected, rel=1e-3)
    assert stage_starts(ladder) == (0, 10, 16)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((StageConfig("a", 48, 4),), r"`stages\[0\]\.length` must divide tokens_per_batch = 256; got 48"),
        ((StageConfig("a", 16, 4), StageConfig("a", 16, 4)), r"`stages` must have different names"),
        ((StageConfig("a", 16, 2),), r"`optimizer\.warmup` must be from 0 up and below the 2 steps"),
        ((*LADDER[:1], StageConfig("b", 16, 4, warmup=1)), r"`stages\[1\]\.warmup` must be left out with schedule"),
        ((StageConfig("a", 16, 4, pose_target=64),), r"`stages\[0\]\.pose_target` must be .* data\.pose_chunks"),
        ((StageConfig("a", 16, 4, transform="SelfExtend()"),), r"`stages\[0\]\.transform` must edit frequencies alone"),
        ((StageConfig("a", 16, 4, transform="Yarn()"),), r"Did you mean 'YaRN'"),
        ((StageConfig("a", 16, 4, transform="YaRN() @ sliding"),), r"`stages\[0\]\.transform` must choose layers that"),
        (
            (StageConfig("a", 16, 4, learnable=True), StageConfig("b", 32, 4, transform="NTKAware()")),
            r"`stages\[1\]\.transform`, NTKAware\(\): .*geometric",
        ),
    ],
)
def test_stages_that_cannot_be_run(stages, words):
    with pytest.raises(ValueError, match=words):
        open_run(config(stages))


@pytest.mark.parametrize(
    ("sizes", "changes", "words"),
    [
        ((32, 1, 1, 1), {}, r"`stages\[0\]\.length` must leave rows that mesh\.data x mesh\.fsdp = 32 ways"),
        ((1, 8, 1, 1), {"compute": ComputeConfig(accumulate=3)}, r"compute\.accumulate = 3 parts divide; got 16 rows"),
        ((1, 1, 4, 1), {}, r"`model\.heads` must be a multiple of mesh\.tensor = 4; got 2"),
        ((1, 1, 2, 1), {"model": ModelConfig(heads=2, kv_heads=1)}, r"`model\.kv_heads` must be a multiple"),
        ((1, 1, 1, 3), {}, r"`length` must be divisible by .*3"),
    ],
)
def test_a_mesh_that_does_not_divide_the_run(sizes, changes, words):
    mesh = jax.sharding.AbstractMesh(sizes, ("data", "fsdp", "tensor", "context"))
    with pytest.raises(ValueError, match=words):
        check_mesh(open_run(config(**changes)), mesh)


def test_a_config_goes_through_toml(tmp_path):
    written = run_config(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(toml(written), encoding="utf-8")
    assert load_run(path).config == written
    changed = load_run(path, ["--stages.1.steps", "7", "--optimizer.learning-rate", "1e-3"]).config
    assert (changed.stages[1].steps, changed.optimizer.learning_rate) == (7, 1e-3)


def test_the_data_of_a_stage_is_what_differs(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "a"\ntokens_per_batch = 64\n[data]\nseed = 3\n[optimizer]\nwarmup = 0\n'
        '[[stages]]\nname = "one"\nlength = 16\nsteps = 2\n[stages.data]\npacking = "concat"\n',
        encoding="utf-8",
    )
    for words, seed, packing in (
        ([], 3, "concat"),
        (["--stages.0.data.packing", "none"], 3, "none"),
        (["--data.seed", "5", "--data.packing", "none"], 5, "concat"),
        (["--data.seed", "5", "--stages.0.data.seed", "4"], 4, "concat"),
    ):
        stage = load_run(path, words).config.stages[0]
        assert stage.data is not None
        assert (stage.data.seed, stage.data.packing) == (seed, packing)


def test_a_sweep_is_not_a_run():
    with pytest.raises(ValueError, match=r"`stages` must be tables of a run .*extrapolate\.py"):
        load_run("configs/quickstart.toml")

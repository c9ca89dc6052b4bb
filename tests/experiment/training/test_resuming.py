"""What may be changed of a run that goes on, and what it would have been trained otherwise with."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rope_jax.experiment.training.config import bearing
from rope_jax.experiment.training.optimizer import learning_rate
from rope_jax.experiment.training.resuming import check_same
from rope_jax.experiment.training.settings import ComputeConfig, HeldOutConfig, OptimizerConfig, RunConfig, StageConfig
from tests.experiment.training.runs import run_config, trained

BASE, NEXT = StageConfig("base", 16, 5), StageConfig("next", 32, 4)
AGAIN = StageConfig("again", 32, 6, schedule="rewarmed")


def config(*stages, name="run", **changes):
    return RunConfig(name, stages, optimizer=OptimizerConfig(warmup=2), **changes)


def test_other_settings_are_named_with_both_values():
    saved, other = bearing(config(BASE)), config(BASE, seed=3, output="elsewhere", name="other")
    with pytest.raises(ValueError, match=r"`config` must be the one that here was saved with; got seed = 0 there, 3 "):
        check_same(saved, other, "here", 1)
    check_same(saved, config(BASE, compute=ComputeConfig(accumulate=2), name="other"), "here", 1)


@pytest.mark.parametrize(
    ("saved", "now", "reached"),
    [
        ((BASE, NEXT), (BASE, NEXT, AGAIN), 2),
        ((BASE, NEXT), (BASE, NEXT, StageConfig("yarn", 32, 0, transform="YaRN()")), 2),
        ((BASE, NEXT), (BASE, replace(NEXT, name="other", theta=5e4)), 1),
        ((BASE, NEXT, AGAIN), (BASE, NEXT), 2),
        ((BASE, NEXT, AGAIN), (BASE, NEXT, replace(AGAIN, steps=60, learning_rate=1e-4)), 1),
        # As many steps, dealt out otherwise.
        ((BASE, NEXT), (BASE, replace(NEXT, steps=1), replace(NEXT, name="rest", steps=3)), 1),
    ],
)
def test_stages_ahead_may_change_where_those_behind_do_not(saved, now, reached):
    check_same(bearing(config(*saved)), config(*now), "here", reached)
    done = sum(stage.steps for stage in saved[:reached])
    before, after = (learning_rate(config(*stages)) for stages in (saved, now))
    assert all(before(step) == after(step) for step in range(done))


REFUSED = {
    "a stage under way": ((BASE, NEXT), (BASE, replace(NEXT, theta=5e4)), 2, r"stages\[1\]\.theta = None there"),
    "more steps of it": (
        *((BASE, NEXT), (BASE, replace(NEXT, steps=9)), 2),
        r"stages\[1\]\.steps = 4 there, 9 here.* To train longer, add a stage with schedule = \"rewarmed\" behind",
    ),
    "a stage left out": ((BASE, NEXT), (NEXT,), 1, r"stages\[0\]\.name = 'base' there, 'next' here"),
    "the curve goes on": (
        *((BASE,), (BASE, NEXT), 1),
        r"`stages\[1\]` must leave .* got 0 steps of the learning rate's curve .* there, 4 here\. "
        r"Write schedule = \"rewarmed\" there",
    ),
    "the curve ends": ((BASE, NEXT), (BASE, replace(NEXT, schedule="rewarmed")), 1, "got 4 steps .* there, 0 here"),
    "longer windows": ((BASE, NEXT), (BASE, NEXT, replace(AGAIN, length=64)), 2, "got 32 tokens of the longest .* 64"),
    "learned": ((BASE, NEXT), (BASE, NEXT, replace(AGAIN, learnable=True)), 2, "got no stages with learnable .* some"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_have_trained_otherwise_is_refused(case):
    saved, now, reached, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        check_same(bearing(config(*saved)), config(*now), "here", reached)


def test_windows_may_be_as_long_as_those_that_are_evaluated():
    evaluate = HeldOutConfig(lengths=(64,))
    saved, now = config(BASE, evaluate=evaluate), config(BASE, replace(AGAIN, length=64), evaluate=evaluate)
    check_same(bearing(saved), now, "here", 1)


def test_a_run_that_is_trained_longer_is_as_one_from_the_start(tmp_path):
    stages = (replace(BASE, length=32), AGAIN)
    whole = trained(run_config(tmp_path, name="whole", stages=stages))
    short = run_config(tmp_path, stages=stages[:1])
    assert trained(short).step == 5
    longer = trained(replace(short, stages=stages))
    assert (longer.step, longer.stopped) == (11, None)
    pairs = zip(jax.tree.leaves(longer.state), jax.tree.leaves(whole.state), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)

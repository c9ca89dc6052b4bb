"""Signals to a whole program: it ends at once where nothing is lost, and where it is told twice."""

import dataclasses
import signal
import time

import pytest

from rope_jax.experiment.training.evaluation import HeldOut
from rope_jax.experiment.training.metrics import lines_of
from rope_jax.experiment.training.settings import CheckpointConfig, HeldOutConfig, LogConfig, StageConfig
from tests.experiment.training.runs import run_config, toml, trained
from tests.experiment.training.test_killed import entries, started

pytestmark = pytest.mark.slow


@pytest.fixture
def endless(tmp_path):
    """(settings file, folder) of a run that ends by a signal alone."""
    config = dataclasses.replace(
        run_config(tmp_path),
        stages=(StageConfig("base", 16, 10**6),),
        evaluate=HeldOutConfig(every=0, windows=4, tokens=3000),
        checkpoint=CheckpointConfig(every=10**6),
        log=LogConfig(every=1, tensorboard=False),
    )
    (tmp_path / "run.toml").write_text(toml(config), encoding="utf-8")
    return tmp_path / "run.toml", tmp_path / "runs" / "run"


def said(process, words):
    """The lines up to the one with the words."""
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended without {words}")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_before_the_first_step_has_nothing_to_wait_for(endless, tmp_path, number, code):
    path, folder = endless
    # Compiled anew, which takes longer than the signal does.
    process = started(path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"))
    try:
        said(process, "compiling for rows of 16 tokens")
        process.send_signal(number)
        _, rest = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code
    assert rest == f"stopped by {number.name}; the same command goes on from step 0\n"
    assert entries(folder / "checkpoints") == []


@pytest.mark.timeout(240)
def test_a_signal_that_comes_twice_at_once_is_one(endless):
    path, folder = endless
    process = started(path)
    try:
        said(process, "base: step 3/")
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    (step,) = entries(folder / "checkpoints")
    assert rest.splitlines()[-1].startswith(f"stopped by SIGINT after step {step} of 1000000; the same command goes on")


@pytest.mark.timeout(240)
def test_a_second_signal_ends_even_a_save_that_hangs(endless, monkeypatch):
    path, folder = endless
    hanging = path.with_name("hanging.py")
    hanging.write_text(
        "import sys, time\n"
        "from rope_jax.experiment.checkpoint import Checkpoints\n"
        "from rope_jax.experiment.training.command import main\n"
        "def save(*_, **__):\n"
        "    print('saving', file=sys.stderr, flush=True)\n"
        "    time.sleep(200)\n"
        "Checkpoints.save = save\n"
        "sys.exit(main(sys.argv[1:]))\n",
        encoding="utf-8",
    )
    monkeypatch.setattr("tests.experiment.training.test_killed.SCRIPT", str(hanging))
    process = started(path)
    try:
        said(process, "base: step 3/")
        process.send_signal(signal.SIGTERM)
        said(process, "saving")
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert rest == "stopped; the same command goes on from the last checkpoint\n"
    assert entries(folder / "checkpoints") == []


def test_a_stage_that_only_evaluates_ends_with_the_signal_that_came_in_it(tmp_path, monkeypatch):
    def losses(*_):
        signal.raise_signal(signal.SIGTERM)
        return {"loss": 1.0, "tail": 1.0}

    monkeypatch.setattr(HeldOut, "losses", losses)
    stages = (StageConfig("as it is", 16, 0), StageConfig("base", 16, 5))
    outcome = trained(run_config(tmp_path, stages=stages))
    assert (outcome.step, outcome.stopped) == (0, signal.SIGTERM)
    lines = lines_of(tmp_path / "runs" / "run" / "metrics.jsonl")
    assert [line["stage"] for line in lines] == ["as it is"]

"""Runs that die: at any moment by kill -9, or as two processes that go on as one."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from rope_jax.experiment.training.metrics import FILE, lines_of
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.settings import (
    CheckpointConfig,
    HeldOutConfig,
    LogConfig,
    OptimizerConfig,
    StageConfig,
)
from rope_jax.parallel import MeshShape
from tests.experiment.training.runs import run_config, toml
from tests.source import ROOT

KILLS = 10
SCRIPT = str(ROOT / "scripts" / "train.py")


def started(path: Path, *words: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, SCRIPT, str(path), *words],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen, timeout: float) -> str:
    """What it printed; it must end well."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    return out.strip()


def weights(config):
    """The parameters of the last checkpoint."""
    with Session(open_run(config)) as session:
        step = session.checkpoints.latest
        assert step is not None and step == config.steps
        return jax.device_get(session.checkpoints.restore(step, {"model": session.abstract["params"]}))


def same(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


BOUNDARY = 300


def moments(random):
    """(step of a checkpoint, what is waited for from there on), in the order of steps."""
    anywhere = [(int(step), "anywhere") for step in random.integers(10, 550, KILLS - 4)]
    saving = [(step, "saving") for step in (50, 200, 450)]
    return sorted([*anywhere, *saving, (BOUNDARY - 10, "boundary")])


def has_come(moment, run: Path) -> bool:
    step, kind = moment
    if kind == "boundary":
        return any(line["step"] == BOUNDARY and line["kind"] == "evaluation" for line in lines_of(run / FILE))
    return latest(run / "checkpoints") >= step and (kind == "anywhere" or unfinished(run / "checkpoints"))


def entries(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def latest(folder: Path) -> int:
    return max((int(name) for name in entries(folder) if name.isdigit()), default=-1)


def unfinished(folder: Path) -> bool:
    """Whether a checkpoint is in the making, or was when its process was killed."""
    return any("tmp" in name for name in entries(folder))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_at_any_moment_changes_nothing(tmp_path):
    stages = (StageConfig("base", 16, BOUNDARY), StageConfig("longer", 32, 300, theta=50_000.0, optimizer="reset"))
    config = dataclasses.replace(
        run_config(tmp_path),
        stages=stages,
        evaluate=HeldOutConfig(every=0, windows=4, tokens=3000),
        checkpoint=CheckpointConfig(every=10),
        log=LogConfig(every=10, tensorboard=False),
    )
    path, run = tmp_path / "run.toml", tmp_path / "runs" / "run"
    path.write_text(toml(config), encoding="utf-8")
    finished(started(path, "--name", "unbroken"), 240)
    random = np.random.default_rng(0)
    left_unfinished = 0
    for step, kind in moments(random):
        # Later than what is there: a process that has not begun is no moment of a run.
        moment = max(step, latest(run / "checkpoints") + 1), kind
        process = started(path)
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end and not has_come(moment, run):
            time.sleep(0.001)
        time.sleep(float(random.uniform(0, 0.05)) if kind == "anywhere" else 0)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.communicate()[1][-4000:]
        process.communicate()
        left_unfinished += unfinished(run / "checkpoints")
    assert left_unfinished > 0
    assert finished(started(path), 240) == str(run)
    assert same(weights(config), weights(dataclasses.replace(config, name="unbroken")))
    lines = [line for line in lines_of(run / FILE) if line["kind"] == "train"]
    assert [line["step"] for line in lines] == list(range(10, 601, 10))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_go_on_as_one_with_eight_devices(tmp_path):
    config = dataclasses.replace(
        run_config(tmp_path),
        stages=(StageConfig("base", 16, 40),),
        mesh=MeshShape(data=-1, fsdp=2),
        optimizer=OptimizerConfig(warmup=2, learning_rate=1e-3),
        evaluate=HeldOutConfig(every=0, windows=4, tokens=3000),
        checkpoint=CheckpointConfig(every=8),
        log=LogConfig(every=1, tensorboard=False),
    )
    path = tmp_path / "run.toml"
    path.write_text(toml(config), encoding="utf-8")
    finished(started(path, "--name", "alone", JAX_NUM_CPU_DEVICES="8"), 240)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    words = ("--distributed.coordinator", address, "--distributed.processes", "2", "--distributed.process")
    both = [started(path, *words, str(number), JAX_NUM_CPU_DEVICES="4") for number in range(2)]
    checkpoints = tmp_path / "runs" / "run" / "checkpoints"
    end = time.monotonic() + 400
    try:
        while latest(checkpoints) < 16 and time.monotonic() < end:
            assert all(process.poll() is None for process in both), [
                process.communicate()[1][-3000:] for process in both
            ]
            time.sleep(0.005)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    reached = latest(checkpoints)
    assert 16 <= reached < 40
    finished(started(path, JAX_NUM_CPU_DEVICES="8"), 240)
    found, expected = (
        [line["loss"] for line in lines_of(tmp_path / "runs" / name / "metrics.jsonl") if line["kind"] == "train"]
        for name in ("run", "alone")
    )
    assert len(found) == len(expected) == 40
    assert np.abs(np.array(found) - np.array(expected)).max() < 1e-5

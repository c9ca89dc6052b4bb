"""Runs the tests of tests/eight_devices in one process that has eight CPU devices: a process has one number of them."""

import os
import subprocess
import sys

import pytest

from tests.source import ROOT


def passed(marker: str, timeout: int) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", marker, "--durations=10", "tests/eight_devices"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-4000:]
    assert " passed" in run.stdout


@pytest.mark.timeout(900)
def test_on_eight_devices():
    passed("not slow", 880)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_eight_devices_slowly():
    passed("slow", 1780)

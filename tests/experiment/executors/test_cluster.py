"""A sweep on a Ray cluster of two nodes: the table of a sweep in one process, whatever is killed on the way."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rope_jax.experiment.config import SweepConfig
from rope_jax.experiment.executors.cluster import RayExecutor
from rope_jax.experiment.executors.ray_options import RayOptions
from rope_jax.experiment.executors.worker import TOKEN
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.results import read_results
from rope_jax.experiment.sweep import Sweep
from tests.experiment.tiny import run, text_config, toml

# The nodes are started by forks that turn into other programs at once; JAX warns of every fork.
FORKS = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), FORKS]

ROOT = Path(__file__).resolve().parents[3]
TRAINING = "training Identity at 16, seed 0"
VICTIM = "loss YaRN x2 at 32, seed 0"


class Observer(Reporter):
    """Collects what is said, and does something when a cell begins or ends."""

    def __init__(self, begun=lambda cell, process: None, ended=lambda count: None):
        super().__init__(Console(quiet=True))
        self.begun, self.ended, self.lines, self.processes = begun, ended, [], set()

    def advance(self, work, line=None):
        if line and ": begun on " in line:
            cell, _, place = line.partition(": begun on ")
            process = int(place.rpartition("process ")[2])
            self.processes.add(process)
            self.begun(cell, process)

    def cell_ended(self, line):
        self.lines.append(line)
        self.ended(len(self.lines))

    def note(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def address():
    """Two nodes of one CPU each."""
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's workers give way to all others, which on a busy machine is for ever.
        patched.setenv("RAY_worker_niceness", "0")
        from ray.cluster_utils import Cluster

        node: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": 0,
            "object_store_memory": 80_000_000,
            "include_dashboard": False,
        }
        cluster = Cluster(initialize_head=True, head_node_args=node)
        cluster.add_node(**node)
        yield cluster.address
        cluster.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Twelve cells measured in this process: (config, what the rows are compared by)."""
    config = text_config(
        tmp_path_factory.mktemp("local"),
        sweep=SweepConfig(methods=("Identity()", "YaRN()", "NTKAware()"), multiples=(1, 2)),
    )
    assert run(config).finished == 12
    return config, by_key(Path(config.output) / config.name)


def by_key(folder):
    """The rows by their key, without what tells one run from another."""
    own = ("seconds", "device", "config", "commit")
    rows = read_results(folder)
    found = {row["key"]: {name: value for name, value in row.items() if name not in own} for row in rows}
    assert len(found) == len(rows)
    return found


def lead(config, address, observer, retries=2):
    """A sweep whose cells the cluster measures."""
    executor = RayExecutor(RayOptions(address=address, retries=retries, wait=120))
    with Sweep(config, reporter=observer, executor=executor) as sweep:
        return sweep.run()


def soon(holds, seconds=60.0):
    """Whether something comes about in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_two_nodes_give_the_table_of_one_process(local, address, tmp_path):
    config, expected = local

    def ended(count):
        # The second worker is hired after the first cells; without a pause the other would measure all the rest.
        if count >= 3 and len(observer.processes) < 2:
            time.sleep(4.0)

    observer = Observer(ended=ended)
    outcome = lead(dataclasses.replace(config, output=str(tmp_path)), address, observer)
    assert (outcome.finished, outcome.failed, outcome.waiting) == (12, (), 0)
    assert by_key(tmp_path / "tiny") == expected
    assert len(observer.processes) == 2
    assert not (tmp_path / "tiny" / TOKEN).exists()


def test_a_killed_worker_costs_a_try_and_one_killed_each_time_its_cell(local, address, tmp_path):
    config, expected = local
    config = dataclasses.replace(config, output=str(tmp_path))
    killed: list[str] = []

    def begun(cell, process):
        if cell == TRAINING and not killed:
            # In the middle of it: its folder is made before its first step is compiled.
            assert soon((tmp_path / "tiny" / "checkpoints").exists)
        elif cell != VICTIM:
            return
        os.kill(process, signal.SIGKILL)
        killed.append(cell)

    observer = Observer(begun)
    outcome = lead(config, address, observer, retries=1)
    assert (outcome.finished, outcome.waiting) == (11, 0)
    assert killed == [TRAINING, VICTIM, VICTIM]
    assert any(line.startswith(f"{TRAINING}: try 1 of 2 failed; worker lost") for line in observer.lines)
    (reason,) = outcome.failed
    assert reason.startswith(f"{VICTIM}: given up after 2 tries; worker lost: The actor died")
    lines = [json.loads(line) for line in (tmp_path / "tiny" / "results.jsonl").read_text().splitlines()]
    (failed,) = [line for line in lines if "error" in line]
    found = by_key(tmp_path / "tiny")
    assert found == {key: row for key, row in expected.items() if key != failed["key"]}
    # The next start tries it again.
    assert lead(config, address, Observer()).finished == 1
    assert by_key(tmp_path / "tiny") == expected


def test_ctrl_c_leaves_whole_rows_and_no_worker(local, address, tmp_path):
    config, expected = local
    config = dataclasses.replace(config, output=str(tmp_path))

    def ended(count):
        if count == 3:
            raise KeyboardInterrupt

    observer = Observer(ended=ended)
    with pytest.raises(KeyboardInterrupt):
        lead(config, address, observer)
    assert soon(lambda: not any(Path(f"/proc/{process}").exists() for process in observer.processes))
    path = tmp_path / "tiny" / "results.jsonl"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3
    with path.open("ab") as file:
        file.write(b'{"key": "torn')
    assert lead(config, address, Observer()).finished == 9
    assert by_key(tmp_path / "tiny") == expected


def test_a_killed_leader_is_gone_on_from(local, address, tmp_path):
    config, expected = local
    config = dataclasses.replace(config, output=str(tmp_path))
    (tmp_path / "tiny.toml").write_text(toml(config), encoding="utf-8")
    command = [sys.executable, "scripts/extrapolate.py", str(tmp_path / "tiny.toml"), "--executor", "ray"]
    path = tmp_path / "tiny" / "results.jsonl"
    leader = subprocess.Popen(
        [*command, "--address", address, "--ray.wait", "120"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (path.exists() and path.read_bytes().count(b"\n") >= 4):
            assert leader.poll() is None
            time.sleep(0.05)
    finally:
        leader.send_signal(signal.SIGKILL)
        leader.wait()
    before = path.read_bytes()
    assert lead(config, address, Observer()).finished <= 8
    assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert by_key(tmp_path / "tiny") == expected

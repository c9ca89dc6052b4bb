"""The options that choose an executor, and what is said where they cannot be had."""

import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from rope_jax.experiment.command import run_script
from rope_jax.experiment.executors import connection
from rope_jax.experiment.executors.connection import capacity, connect, worker_environment
from rope_jax.experiment.executors.local import LocalExecutor
from rope_jax.experiment.executors.options import executor_of
from rope_jax.experiment.executors.ray_options import RayOptions
from tests.experiment.tiny import passkey_config, toml


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(toml(passkey_config(tmp_path)), encoding="utf-8")
    return str(path)


@pytest.fixture
def ray(monkeypatch):
    """A stand-in for the package, which is only asked whether it is connected."""
    monkeypatch.setattr(connection, "imported_ray", lambda: SimpleNamespace(is_initialized=lambda: False))


def command(words, prepare=None):
    return run_script(
        "Sweep.", prepare or (lambda *_, executor: executor), lambda _: Path("done"), words, executors=True
    )


def test_cells_are_measured_here_unless_asked_otherwise(config_file):
    assert isinstance(executor_of({}), LocalExecutor)
    seen = []

    def prepare(config, subject, *, executor):
        seen.append((config.train.steps, type(executor)))

    assert command([config_file, "--executor", "local", "--train.steps", "9"], prepare) == 0
    assert seen == [(9, LocalExecutor)]


def test_help_names_every_option(capsys):
    assert command(["--help"]) == 0
    printed = capsys.readouterr().out
    names = ("--executor", "--address", "--ray.cpus", "--ray.gpus", "--ray.workers", "--ray.retries", "--ray.wait")
    assert all(name in printed for name in names)
    assert run_script("Train.", str, Path, ["--help"]) == 0
    assert "--executor" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "slurm"], "`--executor` must be local or ray; got 'slurm'"),
        (["--executor"], "`--executor` must be followed by its value"),
        (["--address", "a:1"], "`--address` must come with --executor ray"),
        (["--executor", "ray", "--address", "ray://a:1"], "`--address` must be HOST:PORT of the head node, or auto"),
        (["--executor", "ray", "--ray.cpus", "0"], "`--ray.cpus` must be above 0; got 0.0"),
        (["--executor", "ray", "--ray.gpus", "1.5"], "`--ray.gpus` must be 0, below 1, or whole; got 1.5"),
        (["--executor", "ray", "--ray.gpus", "-1"], "`--ray.gpus` must be followed by its value"),
        (["--executor", "ray", "--ray.workers", "0"], "`--ray.workers` must be at least 1; got 0"),
        (["--executor", "ray", "--ray.retries", "two"], "`--ray.retries` must be a whole number; got 'two'"),
        (["--executor", "ray", "--ray.wait", "inf"], "`--ray.wait` must be above 0; got inf"),
    ],
)
def test_a_wrong_option_is_one_line_and_code_2(config_file, capsys, words, message):
    assert command([config_file, *words]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {message}")
    assert printed.err.count("\n") == 1


def test_without_ray_the_line_says_what_to_install(config_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert command([config_file, "--executor", "ray"]) == 2
    printed = capsys.readouterr().err
    assert "pip install 'rope-jax[ray]'" in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_an_address_where_nobody_listens_is_refused_at_once(ray):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=rf"127.0.0.1:{port} cannot be reached .*--ray.wait"):
        connect(RayOptions(address=f"127.0.0.1:{port}"))
    assert time.monotonic() - began < 6


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:port"])
def test_an_address_without_host_and_port_is_refused(ray, address):
    with pytest.raises(ValueError, match=f"`--address` must be that of a Ray cluster; {address} is no HOST:PORT"):
        connect(RayOptions(address=address))


def test_an_address_that_never_answers_is_refused_in_time(ray):
    # Another process imports the package itself.
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConnectionError, match=f"{address} has not answered within 0.5 s"):
            connect(RayOptions(address=address, wait=0.5))
        assert time.monotonic() - began < 10


def test_workers_are_counted_by_node():
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert capacity(nodes, cpus=2, gpus=0) == 5
    assert capacity(nodes, cpus=1, gpus=1) == 2
    assert capacity(nodes, cpus=1, gpus=0.5) == 4
    assert capacity(nodes, cpus=16, gpus=0) == 0


def test_settings_of_jax_go_along_and_a_worker_keeps_to_its_share():
    here = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--a", "HOME": "/root"}
    assert worker_environment(4, 0.5, here) == {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--a",
        "PJRT_NPROC": "4",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450",
    }
    assert worker_environment(0.5, 1, {}) == {"PJRT_NPROC": "1"}
    # Ray hides no GPU from a worker that has none of its own.
    assert worker_environment(1, 0, {}) == {"PJRT_NPROC": "1", "CUDA_VISIBLE_DEVICES": ""}

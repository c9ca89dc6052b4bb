"""Reaching a Ray cluster within a bounded time, and what its nodes hold."""

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from rope_jax.experiment.executors.job import ExecutorError
from rope_jax.experiment.executors.ray_options import RayOptions

# Ray reports its use to its makers unless it is told not to.
QUIET = ("RAY_USAGE_STATS_ENABLED", "0")
# Joining in a process of its own: one that Ray finds no cluster for goes on trying, and may end its process.
PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
NAME_SECONDS = 5.0


def imported_ray() -> Any:
    """The package.

    Raises:
      ImportError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "`--executor ray` must have Ray; got none installed here. Run: pip install 'rope-jax[ray]'"
        ) from error
    return ray


def connect(options: RayOptions) -> Any:
    """Joins the cluster, or starts one on this machine.

    Args:
      options: address and patience.

    Returns:
      The package `ray`, connected.

    Raises:
      ImportError: no Ray here.
      ConnectionError: the cluster does not answer within `options.wait` seconds.
    """
    ray = imported_ray()
    if ray.is_initialized():
        return ray
    os.environ.setdefault(*QUIET)
    address = options.address or os.environ.get("RAY_ADDRESS") or "local"
    if address != "local":
        _probe(address, options.wait)
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    with warnings.catch_warnings():
        # Ray's processes are started by forks that turn into other programs at once; JAX warns of every fork.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    return ray


def _probe(address: str, wait: float) -> None:
    """Join in another process, which is ended when it takes too long."""
    cure = "Is the head node up (ray status), and its port open from here? Longer: --ray.wait SECONDS."
    rule = f"`--address` must be that of a Ray cluster; {address}"
    host, _, port = address.rpartition(":")
    if address != "auto":
        if not host or not port.isdigit():
            raise ValueError(f"{rule} is no HOST:PORT. `ray start --head` prints it.")
        try:
            socket.create_connection((host, int(port)), timeout=min(NAME_SECONDS, wait)).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(f"{rule} cannot be reached ({error}). {cure}") from None
    command = [sys.executable, "-c", PROBE, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=wait, check=False)
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"{rule} has not answered within {wait:g} s. {cure}") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ConnectionError(f"{rule} cannot be joined ({said[-1][:300] if said else 'no reason given'}). {cure}")


def gpus_of(ray: Any, options: RayOptions) -> float:
    """GPUs that a worker takes up: as asked, or one where the cluster has any."""
    if options.gpus is not None:
        return options.gpus
    return 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0


def capacity(nodes: list[dict[str, Any]], cpus: float, gpus: float) -> int:
    """How many workers the living nodes hold together, whoever uses them now.

    Example:
      >>> capacity([{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}], cpus=2, gpus=1)
      2

    Args:
      nodes: as `ray.nodes()` gives them.
      cpus: that a worker takes up.
      gpus: the same.
    """
    total = 0
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        held = [int(resources.get(name, 0.0) / share) for name, share in (("CPU", cpus), ("GPU", gpus)) if share]
        total += min(held)
    return total


def worker_environment(cpus: float, gpus: float, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that a worker starts with: those of JAX and XLA that are set here, and its share of the machine.

    Args:
      cpus: that it takes up; XLA runs as many threads.
      gpus: that it takes up; of a share, XLA takes that much memory, and with none it sees none.
      environment: of the leading process.
    """
    own = {"PJRT_NPROC": str(max(1, int(cpus)))}
    if not gpus:
        # Ray does not hide those of the machine.
        own["CUDA_VISIBLE_DEVICES"] = ""
    elif gpus < 1:
        own["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * gpus:.3f}"
    passed = {name: value for name, value in environment.items() if name.startswith(("JAX_", "XLA_", "PJRT_"))}
    return own | passed


def refuse_small(ray: Any, options: RayOptions, gpus: float) -> ExecutorError:
    """That no node of the cluster holds a worker, with what the nodes have."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    offers = [f"{int(node.get('CPU', 0))} CPUs and {int(node.get('GPU', 0))} GPUs" for node in nodes]
    return ExecutorError(
        f"`--ray.cpus` and `--ray.gpus` must fit a node of the cluster; got {options.cpus:g} and {gpus:g} for "
        f"{'; '.join(offers) or 'no node'}. Lower them, start such a node, or wait longer for one: --ray.wait SECONDS."
    )

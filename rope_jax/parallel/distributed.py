"""Processes that train together: found, or given up on in a bounded time and in words."""

import socket
import time
from typing import Any

import jax

TIMEOUT = 60
_RETRY = 0.5


def initialise(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    timeout: int = TIMEOUT,
) -> None:
    """Join the other processes of this program; before any other use of JAX.

    Args:
      coordinator: "host:port" of process 0; None, with the next two: what Cloud TPU, Slurm, MPI or Kubernetes say.
      processes: how many there are.
      process: which one this is, from 0.
      timeout: seconds until the others must have been met.

    Raises:
      ValueError: some of coordinator, processes and process are missing, or out of range.
      ConnectionError: nobody answers in time; where JAX itself waits for the others, it ends the process instead.
    """
    _check(coordinator, processes, process, timeout)
    if coordinator is not None and process:
        _await_coordinator(coordinator, timeout)
    given: dict[str, Any] = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    try:
        jax.distributed.initialize(**given, initialization_timeout=timeout)
    except (RuntimeError, ValueError) as error:
        whom = f"the coordinator {coordinator}" if coordinator else "a coordinator in the environment of this process"
        cure = "Start every process with the same address" if coordinator else "Give coordinator, processes and process"
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ConnectionError(
            f"`distributed` must reach {whom} within {timeout} s; got: {reason}. "
            f"{cure}, or leave it out for one process."
        ) from None


def _check(coordinator: str | None, processes: int | None, process: int | None, timeout: int) -> None:
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise ValueError(
            f"`{missing[0]}` must be given with the other settings of distributed; got nothing. Give all, or none."
        )
    if timeout < 1:
        raise ValueError(f"`timeout` must be at least 1 s; got {timeout}. 60 suits most clusters.")
    if coordinator is None or processes is None or process is None:
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f'`coordinator` must be "host:port"; got {coordinator!r}. An example: "10.0.0.1:8476".')
    if not 0 <= process < processes:
        raise ValueError(f"`process` must be from 0 to {processes - 1}; got {process}. Number them from 0.")


def _await_coordinator(coordinator: str, timeout: int) -> None:
    """Wait until the coordinator's port answers: its client ends the whole process when it never does."""
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=max(end - time.monotonic(), _RETRY)):
                return
        except OSError as error:
            if time.monotonic() + _RETRY >= end:
                raise ConnectionError(
                    f"`coordinator` must answer within {timeout} s; got {error} from {coordinator}. "
                    "Start process 0 first, and let the port through the firewall."
                ) from None
            time.sleep(_RETRY)

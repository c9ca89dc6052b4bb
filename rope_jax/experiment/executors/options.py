"""The command-line options that say where cells are measured."""

import argparse
from collections.abc import Mapping
from typing import Any

from rope_jax.experiment.executors.job import Executor
from rope_jax.experiment.executors.local import LocalExecutor
from rope_jax.experiment.executors.ray_options import RayOptions

# Option: its field in RayOptions, what its value is read by, and how the help calls the value and the option.
OPTIONS: tuple[tuple[str, str, type, str, str], ...] = (
    (
        *("--address", "address", str, "HOST:PORT"),
        "of the head node, or auto for a cluster that runs on this machine (default: RAY_ADDRESS, else this machine "
        "alone, for the length of the sweep)",
    ),
    ("--ray.cpus", "cpus", float, "N", "CPUs that a worker takes up (default: 1)"),
    (
        *("--ray.gpus", "gpus", float, "N"),
        "GPUs that a worker takes up, a share of one where below 1 (default: 1 where a node has any, else 0)",
    ),
    ("--ray.workers", "workers", int, "N", "most workers at once (default: as many as the nodes hold)"),
    (
        *("--ray.retries", "retries", int, "N"),
        "how often a cell is tried again after it lost its worker or raised an error, before it is recorded as failed "
        "(default: 2)",
    ),
    (
        *("--ray.wait", "wait", float, "SECONDS"),
        "time in which the cluster must answer and have a node that holds a worker (default: 30)",
    ),
)
NAMES = ("--executor", *(name for name, *_ in OPTIONS))


def add_help(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a help text."""
    group = parser.add_argument_group(
        "where cells are measured",
        "With ray, cells that need nothing of one another are measured at the same time by the workers of a Ray "
        "cluster, which keep their text, weights and compiled programs between cells. This process alone writes the "
        "results, measures nothing and takes up no accelerator. OUTPUT and the text must be on storage that all "
        "machines share, at the same paths; rope_jax must be installed on all. Variables JAX_* and XLA_* go along.",
    )
    group.add_argument(
        "--executor", choices=("local", "ray"), help="one cell after the other here (default), or on a Ray cluster"
    )
    for name, field, _, value, text in OPTIONS:
        group.add_argument(name, dest=field, metavar=value, help=text)


def executor_of(given: Mapping[str, str]) -> Executor:
    """The executor that the options ask for.

    Args:
      given: option -> its word, of those in `NAMES`.

    Raises:
      ValueError: an unknown executor, an option of Ray without it, or a value that is out of range.
    """
    kind = given.get("--executor", "local")
    if kind not in ("local", "ray"):
        raise ValueError(f"`--executor` must be local or ray; got {kind!r}. Leave it out for local.")
    chosen = {field: _read(given[name], name, read) for name, field, read, *_ in OPTIONS if name in given}
    if kind == "ray":
        # Here, so that nothing of Ray is read for a sweep in this process.
        from rope_jax.experiment.executors.cluster import RayExecutor

        return RayExecutor(RayOptions(**chosen))
    if chosen:
        name = next(name for name, field, *_ in OPTIONS if field in chosen)
        raise ValueError(f"`{name}` must come with --executor ray; got the local executor. Add --executor ray.")
    return LocalExecutor()


def _read(word: str, name: str, read: type) -> Any:
    try:
        return read(word)
    except ValueError:
        kind = "a whole number" if read is int else "a number"
        raise ValueError(f"`{name}` must be {kind}; got {word!r}. Leave it out for its default.") from None

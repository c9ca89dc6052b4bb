"""Checkpoints: named pytrees and a JSON note for a step, complete or absent even when the process is killed."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

KEPT = 2  # the last step, and one more in case that the disk loses it


@contextmanager
def _interrupt_afterwards() -> Iterator[None]:
    """Hold Ctrl-C back until the block has ended: inside, the event loop of the writer would swallow it or hang.

    Only the main thread receives signals, and a handler that was not set from Python could not be put back.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held and callable(handler):
            # Called rather than raised again: a signal may come through in a garbage-collection callback, which
            # swallows the exception.
            handler(held[-1], None)
        elif held:
            signal.raise_signal(signal.SIGINT)


@_interrupt_afterwards()
def save(folder: str | Path, step: int, items: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Writes one step and waits until it is complete; older steps but the last two are deleted.

    Ctrl-C in the meantime takes effect once the step is complete.

    Args:
        folder: made if absent.
        step: later than every step saved there.
        items: name -> pytree of arrays (random keys too).
        meta: JSON-ready note, kept with the step.

    Raises:
        ValueError: the step is not later than the last one.
    """
    from orbax.checkpoint import v1 as ocp

    keep = ocp.training.preservation_policies.LatestN(KEPT)
    note = {"meta": dict(meta), "leaves": {name: _leaves(item) for name, item in items.items()}}
    with ocp.training.Checkpointer(Path(folder).resolve(), preservation_policy=keep) as checkpointer:
        latest = checkpointer.latest
        if latest is not None and step <= latest.step:
            raise ValueError(f"`step` must be above the last saved one, {latest.step}; got {step}. Use another folder.")
        checkpointer.save_checkpointables(step, dict(items), force=True, custom_metadata=note)


@_interrupt_afterwards()
def restore_latest(
    folder: str | Path, abstract: Mapping[str, Any]
) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """Reads the last complete step.

    Args:
        folder: where `save` wrote; may be absent.
        abstract: name -> pytree of arrays or `jax.ShapeDtypeStruct`, for some or all items; a leaf without a sharding
            goes to the first device.

    Returns:
        (step, items, meta), or None when nothing was saved. Items have the shardings of `abstract`, not of the file.

    Raises:
        ValueError: a leaf is missing on either side, or differs in shape or dtype; nothing is cast.
    """
    if not Path(folder).is_dir():
        return None
    from orbax.checkpoint import v1 as ocp

    with ocp.training.Checkpointer(Path(folder).resolve()) as checkpointer:
        if checkpointer.latest is None:
            return None
        step = int(checkpointer.latest.step)
        note = checkpointer.checkpointables_metadata(step).custom_metadata
        for name, item in abstract.items():
            saved, asked = note["leaves"].get(name, {}), _leaves(item)
            for path in sorted(saved.keys() | asked.keys()):
                if saved.get(path) != asked.get(path):
                    rule = f"`{name}{path}` must be what step {step} of {folder} holds, {saved.get(path)}"
                    raise ValueError(f"{rule}; got {asked.get(path)}. Use the config it was saved with.")
        items = checkpointer.load_checkpointables(step, jax.tree.map(_placed, dict(abstract)))
    return step, {name: items[name] for name in abstract}, note["meta"]


def _leaves(item: Any) -> dict[str, str]:
    """Path of each leaf -> its dtype and shape."""
    flat = jax.tree_util.tree_leaves_with_path(item)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in flat}


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
    """A leaf's shape and dtype with the device that it goes to."""
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

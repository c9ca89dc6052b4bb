"""Checkpoints: named pytrees and a JSON note for a step, complete or absent even when the process is killed.

`save` and `restore_latest` are for short trainings that wait for the disk; `Checkpoints` writes while training goes on.
"""

import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding
from jaxtyping import PyTree

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
        OSError: it cannot be written.
    """
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(step, items, meta, wait=True)


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
        ValueError: a leaf is missing on either side, or differs in shape or dtype (nothing is cast), or the step is
            damaged.
    """
    if not Path(folder).is_dir():
        return None
    with Checkpoints(folder) as checkpoints:
        if checkpoints.latest is None:
            return None
        step = checkpoints.latest
        return step, checkpoints.restore(step, abstract), checkpoints.meta(step)


class Checkpoints:
    """The checkpoints in one folder, written in the background, complete or absent, kept by policy.

    Example:
      with Checkpoints(folder, keep=2, keep_every=1000) as checkpoints:
          checkpoints.save(step, {"model": params, "opt": opt}, {"config": config})

    Args:
        folder: made if absent.
        keep: how many of the last steps are kept.
        keep_every: steps whose multiples are kept as well; 0: none.
    """

    def __init__(self, folder: str | Path, *, keep: int = KEPT, keep_every: int = 0) -> None:
        from orbax.checkpoint import v1 as ocp

        policies = ocp.training.preservation_policies
        policy = policies.LatestN(keep)
        if keep_every:
            policy = policies.AnyPreservationPolicy([policy, policies.EveryNSteps(keep_every)])
        self.folder = Path(folder).resolve()
        self._checkpointer = ocp.training.Checkpointer(self.folder, preservation_policy=policy)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        with self._writing():
            self._checkpointer.close()

    @property
    def latest(self) -> int | None:
        """The last complete step."""
        latest = self._checkpointer.latest
        return None if latest is None else int(latest.step)

    def save(self, step: int, items: Mapping[str, Any], meta: Mapping[str, Any], *, wait: bool = False) -> None:
        """Writes one step; returns when the arrays may be donated or changed, the disk has them after `wait`.

        Arguments and errors as of the function `save`.
        """
        latest = self.latest
        if latest is not None and step <= latest:
            raise ValueError(f"`step` must be above the last saved one, {latest}; got {step}. Use another folder.")
        note = {"step": step, "meta": dict(meta), "leaves": {name: _leaves(item) for name, item in items.items()}}
        with self._writing():
            if wait:
                self._checkpointer.save_checkpointables(step, dict(items), force=True, custom_metadata=note)
            else:
                self._checkpointer.save_checkpointables_async(step, dict(items), force=True, custom_metadata=note)

    def wait(self) -> None:
        """Waits until every step that was saved is complete."""
        with self._writing():
            self._checkpointer.wait()

    def meta(self, step: int) -> dict[str, Any]:
        """The note of a step.

        Raises:
            ValueError: the step is damaged.
        """
        return self._note(step)["meta"]

    def restore(self, step: int, abstract: Mapping[str, Any]) -> dict[str, Any]:
        """The items of a step; arguments and errors as of `restore_latest`."""
        note = self._note(step)
        for name, item in abstract.items():
            saved, asked = note["leaves"].get(name, {}), _leaves(item)
            for path in sorted(saved.keys() | asked.keys()):
                if saved.get(path) != asked.get(path):
                    rule = f"`{name}{path}` must be what step {step} of {self.folder} holds, {saved.get(path)}"
                    raise ValueError(f"{rule}; got {asked.get(path)}. Use the config it was saved with.")
        with self._whole(step):
            items = self._checkpointer.load_checkpointables(step, jax.tree.map(_placed, dict(abstract)))
            return {name: items[name] for name in abstract}

    def _note(self, step: int) -> dict[str, Any]:
        with self._whole(step):
            note = self._checkpointer.checkpointables_metadata(step).custom_metadata
            # Those of before this was written down have no step.
            if note.get("step", step) != step:
                raise ValueError(f"it holds step {note['step']}")
            return {"meta": note["meta"], "leaves": note["leaves"]}

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What a disk that is full or gone raises, now or for a step before, in words that say what to do."""
        try:
            yield
        except Exception as error:
            # Asked of the disk: the writer counts what it has begun as well.
            whole = (
                [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]
                if self.folder.is_dir()
                else []
            )
            then = f"goes on from step {max(whole)}" if whole else "begins anew"
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise OSError(
                f"`checkpoint` must be written to {self.folder}; got {reason}. Make room there, or mend what it says: "
                f"the same command {then}."
            ) from None

    @contextmanager
    def _whole(self, step: int) -> Iterator[None]:
        """What reading a damaged step raises, whatever it is, in words that say what to do."""
        try:
            yield
        except Exception as error:
            earlier = [int(found.step) for found in self._checkpointer.checkpoints if found.step < step]
            then = f"step {max(earlier)} is used then" if earlier else "the run begins anew then"
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(
                f"`checkpoint` must be whole; got step {step} of {self.folder} damaged ({type(error).__name__}: "
                f"{reason}). Delete the folder {self.folder / str(step)}: {then}."
            ) from None


def check_space(folder: str | Path, state: PyTree, kept: int) -> None:
    """Refuses to begin what the disk cannot hold: the checkpoints that are kept, and one more in the making.

    Args:
        folder: of the checkpoints; what lies there already counts as room.
        state: arrays or `jax.ShapeDtypeStruct`.
        kept: checkpoints that are kept.

    Raises:
        OSError: too little is free.
    """
    folder = Path(folder).resolve()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    needed = (kept + 1) * size
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    own = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    free = shutil.disk_usage(there).free + own
    if needed > free:
        raise OSError(
            f"`checkpoint` must find room for {kept + 1} states of {_bytes(size)}, {_bytes(needed)}; got "
            f"{_bytes(free)} free at {there}. Make room, lower checkpoint.keep, raise checkpoint.keep_every, or change "
            "`output`."
        )


def _bytes(number: int) -> str:
    return f"{number / 2**30:.3g} GiB" if number >= 2**30 else f"{number / 2**20:.3g} MiB"


def _leaves(item: Any) -> dict[str, str]:
    """Path of each leaf -> its dtype and shape."""
    flat = jax.tree_util.tree_leaves_with_path(item)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in flat}


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
    """A leaf's shape and dtype with the device that it goes to."""
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

"""The folder of a run: made, and held by one process at a time."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

import jax

from rope_jax.experiment.training.metrics import FILE as METRICS
from rope_jax.experiment.training.record import FILE as RECORD

LOCK = "lock"


def make_folder(folder: Path) -> None:
    """The folder of a run, which may be there; nothing is made where something stands in the way of its parts."""
    for part in (*reversed(folder.parents), folder, folder / "checkpoints", folder / "tensorboard"):
        if part.exists() and not part.is_dir():
            raise NotADirectoryError(
                f"`output` must lead to a folder; got the file {part}. Move it, or write elsewhere."
            )
    for part in (folder / LOCK, folder / METRICS, folder / RECORD):
        if part.is_dir():
            raise IsADirectoryError(f"`output` must have a file at {part}; got a folder. Move it, or write elsewhere.")
    there = next(part for part in (folder, *folder.parents) if part.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"`output` must be a folder to write in; got {there}, which is not. Write elsewhere.")
    folder.mkdir(parents=True, exist_ok=True)


def locked(folder: Path) -> TextIO | None:
    """The folder's lock, held by the first process; the system lets go of it when that ends, however it ends."""
    if jax.process_index():
        return None
    lock = (folder / LOCK).open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise RuntimeError(
            f"`output` must be a folder that nobody else trains in; got {folder}, which another process has open. "
            "Wait for it, or give the run another name."
        ) from None
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock

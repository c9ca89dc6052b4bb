"""Tuned checkpoints written back in Hugging Face form, each once and whole."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rope_jax.experiment.layers import Layers
from rope_jax.experiment.model import Subject
from rope_jax.schedule import FrequencySchedule
from rope_jax.spec import ModelRope

FOLDER = "exports"


def exported_rope(subject: Subject, transform: Callable[..., FrequencySchedule], layers: Layers = "auto") -> ModelRope:
    """The rotary settings of a tuned checkpoint, in the layer groups of its configuration where these suffice.

    Args:
      subject: the checkpoint's.
      transform: the method that it was tuned with.
      layers: those that the method edited.

    Raises:
      ValueError: a model that is not a rotated checkpoint.
    """
    fine, own = subject.composed(transform, layers), subject.own_rope
    if fine is None or own is None:
        raise ValueError(
            "`subject` must be a checkpoint with rotary positions; got another model. Set model.checkpoint."
        )
    found: dict[str, list[Any]] = {group: [] for group in own.specs}
    for group, finer in zip(own.layer_groups, fine.layer_groups, strict=True):
        if fine.specs[finer] not in found[group]:
            found[group].append(fine.specs[finer])
    # A method edits some layers of a group only where the others have windows; then the finer groups are named.
    coarse = all(len(specs) == 1 for specs in found.values())
    if not coarse:
        return dataclasses.replace(fine, sources=own.sources)
    return dataclasses.replace(own, specs={group: specs[0] for group, specs in found.items()})


def export(write: Callable[[Path], None], folder: Path) -> Path:
    """Writes a folder whole or not at all; one that is there already is kept.

    Args:
      write: makes the folder that it is given.
      folder: where the result lies in the end.
    """
    if folder.is_dir():
        return folder
    # In a folder of its own, since a kill may leave more behind than the draft itself.
    drafts = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(drafts, ignore_errors=True)
    drafts.mkdir(parents=True)
    write(drafts / folder.name)
    written = (drafts / folder.name).rename(folder)
    drafts.rmdir()
    return written

"""Whose weights a page is about: those of a checkpoint, said in its header and in its figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from rope_jax.experiment.report.read import Row
from rope_jax.experiment.report.words import quantity

Origin = Mapping[str, Any]
LONGEST_NAME = 26  # characters that the title of a figure has room for, beside the rest of the line


def origin_of(rows: Sequence[Row]) -> Origin | None:
    """The checkpoint that the newest row starts from; None for weights that were trained here."""
    found: Origin | None = rows[-1].get("checkpoint") if rows else None
    return found


def in_words(origin: Origin | None, trained_length: int) -> str:
    """The checkpoint for the head of a page; nothing for weights that were trained here."""
    if origin is None:
        return ""
    own = origin["trained_length"]
    other = "" if own == trained_length else f" (its configuration gives {own:,}; the settings take another length)"
    return (
        f"Checkpoint {origin['name']}: {quantity(origin['parameters'])} parameters, trained at {trained_length:,} "
        f"tokens{other}, digest {origin['digest'][:12]}. Losses are in nats per token of its own tokenizer."
        f"{_opening(origin)}"
    )


def _opening(origin: Origin) -> str:
    """Which token opens a window, where the rows say so."""
    if "bos" not in origin:
        return ""
    bos = origin["bos"]
    return " No BOS opens a window." if bos is None else f" Every window opens with its BOS, id {bos}."


def heading(origin: Origin | None, trained_length: int, phase: str, what: str) -> str:
    """The title of a figure: the phase and what is shown; on a line below it the checkpoint, where there is one."""
    if origin is None:
        return f"{phase}: {what}"
    name = str(origin["name"])
    name = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f"{phase}: {what}\n{name}, {quantity(origin['parameters'])} parameters, trained at {trained_length:,}"

"""What is about to be saved, checked before anything is written, and written so that it appears when it is whole."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax
import jax.numpy as jnp
from flax import nnx

from rope_jax import nn
from rope_jax.huggingface.weights.matching import abstract_decoder, parameter_shapes
from rope_jax.huggingface.weights.wording import brief, shown


def checked_target(argument: str, target: Any) -> Path:
    """Where to, as an absolute path.

    Raises:
      TypeError: no path.
      ValueError: a path that no file can have.
    """
    name = os.fspath(target) if isinstance(target, str | os.PathLike) else target
    if not isinstance(name, str):
        raise TypeError(f"`{argument}` must be a path; got {type(target).__name__}. Pass a str or a Path.")
    if not name or "\0" in name:
        raise ValueError(f"`{argument}` must be a path; got {brief(name)}. Correct it.")
    # Links are followed: what they point to is the place.
    return Path(os.path.realpath(name))


def check_parts(model: Any) -> None:
    """Refuse what is no model with all its parts.

    Raises:
      TypeError: no decoder, rotary settings, tokenizer (or None) or configuration.
    """
    missing = [part for part in ("decoder", "rope", "tokenizer", "config") if not hasattr(model, part)]
    if missing:
        raise TypeError(
            f"`model` must be a Pretrained; got {type(model).__name__}, which has no {missing[0]}. Use load_pretrained."
        )
    if not isinstance(model.config, Mapping):
        raise TypeError(f"`model` must have a configuration of keys; got {type(model.config).__name__}. Correct it.")
    if model.tokenizer is not None and not hasattr(model.tokenizer, "get_vocab"):
        raise TypeError(
            f"`model` must have a tokenizers.Tokenizer or None; got {type(model.tokenizer).__name__}. Correct it."
        )


def check_parameters(decoder: nn.Decoder) -> None:
    """Refuse parameters that could be written, but not read back: they are not those of the decoder's own choices.

    Raises:
      ValueError: parameters that were removed, added, or replaced by ones of another shape or of integers.
    """
    state = nnx.state(decoder)
    held, meant = parameter_shapes(state), parameter_shapes(abstract_decoder(decoder.config)[1])
    for path in sorted({*held, *meant}):
        if held.get(path) != meant.get(path):
            raise ValueError(
                f"`model` must hold the parameters of its decoder's configuration; got {shown(path)} of shape "
                f"{held.get(path)} instead of {meant.get(path)}. Build the decoder again from its configuration."
            )
    for leaf in jax.tree.leaves(state):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"`model` must hold floating parameters; got {leaf.dtype}. Convert them.")


@contextmanager
def placing(argument: str, target: Path) -> Iterator[None]:
    """Names the argument where the system refuses a place.

    Raises:
      OSError: of the kind that it was: no room, no permission, no such place.
    """
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"`{argument}` must be a place with room that may be written; got {brief(str(target))}: "
            f"{error.strerror or error}. Nothing was written; choose another, or make room."
        ) from error


@contextmanager
def appearing(argument: str, target: Path) -> Iterator[Path]:
    """A path beside the target for what is written, which is renamed when all of it is there.

    Raises:
      OSError: as `placing` does.
    """
    # Short, so that the longest name fits; new, since process ids come again.
    partial = target.parent / f".{target.name[:40]}.partial-{uuid4().hex[:12]}"
    try:
        with placing(argument, target):
            yield partial
            if target.is_dir():
                target.rmdir()
            os.replace(partial, target)
    finally:
        with suppress(OSError):
            if partial.is_dir():
                shutil.rmtree(partial)
            else:
                partial.unlink()

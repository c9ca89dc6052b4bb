"""Dotted overrides of a command line, such as `--train.steps 40`, applied to settings; a mistake is one line."""

import dataclasses
import difflib
import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from typing import Any, TypeVar

T = TypeVar("T")


def overridden_by(words: Sequence[str], settings: T, *, config: Any = ()) -> T:
    """The settings with what the words of a command line change.

    Args:
      words: of the command line; `--help` prints every setting with its value and leaves.
      settings: a dataclass, of dataclasses, tuples of them and plain values.
      config: of tyro.

    Raises:
      ValueError: a setting that there is none of, with the nearest one, or a value that is none for its setting.
      SystemExit: `--help` (0).
    """
    import tyro

    said = io.StringIO()
    try:
        with redirect_stderr(said):
            changed, unknown = tyro.cli(
                type(settings), default=settings, args=list(words), config=config, return_unknown_args=True
            )
    except SystemExit as left:
        if not left.code:
            raise
        raise ValueError(f"`overrides` must fit their settings: {_sentence(said.getvalue())}") from None
    if unknown:
        raise ValueError(_not_known(unknown[0], settings))
    return changed


def _not_known(word: str, settings: Any) -> str:
    if not word.startswith("-"):
        return (
            f"`overrides` must be settings, each with its value; got {word!r} alone. Write --table.key in front; a "
            "switch takes no value: --table.key or --table.no-key."
        )
    name = word.partition("=")[0]
    asked = name.lstrip("-").replace("_", "-")
    names = list(_names(settings))
    keys = {path.rpartition(".")[2]: path for path in reversed(names)}
    close = difflib.get_close_matches(asked, names, n=1)
    # A key alone, without its table.
    close = close or [keys[key] for key in difflib.get_close_matches(asked, keys, n=1)]
    cure = f"Did you mean `--{close[0]}`?" if close else "CONFIG.toml --help lists all."
    return f"`{name}` is not a setting. {cure}"


def _names(value: Any, path: str = "") -> Iterator[str]:
    """The dotted names that tyro gives the settings."""
    if dataclasses.is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        inner = {str(index): item for index, item in enumerate(value)}
    else:
        yield path
        if isinstance(value, bool):
            table, dot, key = path.rpartition(".")
            yield f"{table}{dot}no-{key}"
        return
    for name, item in inner.items():
        yield from _names(item, ".".join(filter(None, (path, name.replace("_", "-")))))


def _sentence(box: str) -> str:
    """What tyro says in the first part of its box, which has a border or, where there are no letters for one, rules."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.strip()]
    inner = lines[1:-1] if "╭" in box else lines[2:]
    return " ".join(" ".join(itertools.takewhile(lambda line: line.strip("─-"), inner)).split())

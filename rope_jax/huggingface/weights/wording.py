"""What a file says, in one line of a message."""

from typing import Any

LONGEST = 200


def shown(name: str) -> str:
    """A name from a file; in quotes where it would break the line, and cut where it would fill the screen."""
    return _cut(name if name.isprintable() else repr(name))


def brief(value: Any) -> str:
    """The repr of a value, cut where it would fill the screen."""
    return _cut(repr(value))


def some(names: list[str]) -> str:
    """The first five names, and how many there are."""
    return ", ".join(map(shown, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"

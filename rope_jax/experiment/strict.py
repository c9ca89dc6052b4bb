"""Plain nested tables into frozen dataclasses; unknown keys and other types are refused by their dotted path."""

import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def from_table(kind: type[T], table: Mapping[str, Any], path: str = "") -> T:
    """The dataclass `kind` filled from a table as `tomllib` gives it; absent keys keep their defaults.

    Lists become tuples and integers become floats where a float is asked for; nothing else is converted, and a
    boolean is not a number.

    Args:
        kind: a dataclass of bool, int, float, str, Literal, unions, tuple[X, ...], dict[str, X] and dataclasses.
        table: key -> value.
        path: the dotted path of this table, for messages.
    Raises:
        ValueError: an unknown key (the nearest one is named), or a required one that is absent.
        TypeError: a value of another type.
    """
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise ValueError(f"`{_join(path, key)}` is not a setting. {_nearest(key, path, list(fields))}")
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in table:
            raise ValueError(f"`{_join(path, name)}` must be given; got nothing. Add a line `{name} = ...`.")
    return kind(**{key: _value(hints[key], value, _join(path, key)) for key, value in table.items()})


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _nearest(key: str, path: str, names: list[str]) -> str:
    """The cure for an unknown key."""
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"Did you mean `{_join(path, close[0])}`?" if close else f"Settings here: {', '.join(names)}."


def _value(hint: Any, value: Any, path: str) -> Any:
    """`value` as `hint` asks, or a TypeError."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return from_table(hint, value, path)
    elif get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            if _fits(member, value):
                return _value(member, value, path)
    elif get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_value(get_args(hint)[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    elif get_origin(hint) is dict:
        if isinstance(value, Mapping):
            return {key: _value(get_args(hint)[1], item, _join(path, key)) for key, item in value.items()}
    elif _fits(hint, value):
        return float(value) if hint is float else value
    raise TypeError(f"`{path}` must be {_described(hint)}; got {value!r} ({type(value).__name__}). Write it as one.")


def _fits(hint: Any, value: Any) -> bool:
    """Whether a plain value belongs to a plain type."""
    if get_origin(hint) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if dataclasses.is_dataclass(hint):
        return isinstance(value, Mapping)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _described(hint: Any) -> str:
    """A type in words."""
    arguments = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return "a table"
    if get_origin(hint) is Literal:
        return " or ".join(f'"{choice}"' for choice in arguments)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_described(member) for member in arguments if member is not types.NoneType)
    if get_origin(hint) is tuple:
        return f"a list of {_described(arguments[0])}"
    if get_origin(hint) is dict:
        return f"a table of {_described(arguments[1])}"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}[hint]

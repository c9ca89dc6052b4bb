"""A scaling method as text: `"YaRN(beta_fast=8)"`, `"chain(NTKAware(), Resonance())"`.

The text is read with `ast`, never evaluated: calls of the public transform classes with literal keywords. What a sweep
knows better than its config (`factor`, `original_length`) is left out of the text and filled in per cell.
"""

import ast
import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from rope_jax.scaling import METHODS, chain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Turns from which on a pair is left alone. The published 32 belong to 4096 trained tokens: sqrt(4096) / 2. A rule fixed
# beforehand, the same for all that have the parameter, never chosen on the targets.
_SCALED_BETA = MappingProxyType({"YaRN": "beta_fast", "DynamicYaRN": "beta_fast", "NTKByParts": "beta"})


@dataclass(frozen=True, kw_only=True)
class Call:
    """One transform of a method: the class name and the keywords that were written, as sorted pairs."""

    name: str
    keywords: tuple[tuple[str, Any], ...]

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every keyword that the class takes."""
        return tuple(field.name for field in _fields(self.name))

    def awaits(self, keyword: str) -> bool:
        """Whether the class takes `keyword` and the text leaves it out."""
        return keyword in self.accepted and keyword not in dict(self.keywords)

    def filled(self, factor: float, original_length: int) -> dict[str, Any]:
        """The keywords with what the sweep fills in."""
        known: dict[str, Any] = {"original_length": original_length}
        known["factor"] = 1.0 if self.name.startswith("Dynamic") else factor
        if self.name in _SCALED_BETA:
            length = _number(dict(self.keywords).get("original_length", original_length))
            # A written length that has no root is left to the transform, whose check names it.
            if length is not None and length > 0:
                known[_SCALED_BETA[self.name]] = math.sqrt(length) / 2
        return {name: value for name, value in known.items() if self.awaits(name)} | dict(self.keywords)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A parsed method: its calls in the order in which they edit the schedule.

    Example:
      >>> method = parse_method("YaRN()")
      >>> method.text(original_length=64)
      'YaRN(beta_fast=4.0)'
      >>> method.transform(factor=2.0, original_length=64).beta_fast
      4.0
    """

    calls: tuple[Call, ...]

    @property
    def takes_factor(self) -> bool:
        """Whether the factor of a cell changes the transform: some call awaits it (a dynamic one stays at 1)."""
        return any(call.awaits("factor") and not call.name.startswith("Dynamic") for call in self.calls)

    @property
    def written_factor(self) -> float | None:
        """The first factor that the text writes out, None without one (or with what is no number)."""
        written = [dict(call.keywords)["factor"] for call in self.calls if "factor" in dict(call.keywords)]
        return _number(written[0]) if written else None

    @property
    def needs_length(self) -> bool:
        """Whether the frequencies depend on the length that is evaluated."""
        return any(METHODS[call.name].needs_length for call in self.calls)

    @property
    def label(self) -> str:
        """Short name for tables and plots: what was written, without empty parentheses."""
        return " + ".join(_written(call.name, dict(call.keywords)).removesuffix("()") for call in self.calls)

    def text(self, *, original_length: int) -> str:
        """Canonical text: derived keywords written out, the factor and original_length of the cell left out."""
        parts = []
        for call in self.calls:
            filled = call.filled(1.0, original_length)
            hidden = [name for name in ("factor", "original_length") if call.awaits(name)]
            parts.append(_written(call.name, {name: filled[name] for name in sorted(filled) if name not in hidden}))
        return _joined(parts)

    def transform(self, *, factor: float, original_length: int) -> Callable[..., Any]:
        """The frequency transform for one cell.

        Args:
          factor: target length / trained length, for the calls that leave it out.
          original_length: tokens that the weights were trained on, likewise.

        Raises:
          ValueError: a keyword without a default is neither written nor filled in, or a value breaks a rule.
        """
        built = []
        for call in self.calls:
            keywords = call.filled(factor, original_length)
            missing = [field.name for field in _fields(call.name) if _required(field) and field.name not in keywords]
            if missing:
                raise ValueError(
                    f"`methods` must give every keyword that has no default; got {call.name} without "
                    f"{', '.join(missing)}. Write {call.name}({missing[0]}=...)."
                )
            built.append(METHODS[call.name](**keywords))
        return built[0] if len(built) == 1 else chain(*built)


def parse_method(text: str) -> Method:
    """Read one method expression.

    text = Name(keyword=literal, ...) | chain(text, ...)

    Args:
      text: a call of a class in `rope_jax.scaling.METHODS`; keyword values are numbers, True, False, None, strings, or
        tuples and lists of numbers.

    Returns:
      The method, with nothing filled in yet.

    Raises:
      ValueError: not such an expression; an unknown class or keyword (the nearest known one is named).

    Example:
      >>> [call.name for call in parse_method("chain(NTKAware(), Resonance())").calls]
      ['NTKAware', 'Resonance']
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ValueError(
            f"`methods` must hold expressions such as 'YaRN(beta_fast=8)'; got {text!r}. Close every parenthesis."
        ) from None
    return Method(calls=tuple(_calls(node, text)))


def _calls(node: ast.expr, text: str) -> list[Call]:
    """The calls of an expression, chains flattened."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(
            f"`methods` must be calls of transform classes; got {ast.unparse(node)!r} in {text!r}. "
            "Write the class with parentheses, such as Identity()."
        )
    name = node.func.id
    if name == "chain":
        if node.keywords:
            raise ValueError(
                f"`chain` must be given transforms only; got a keyword in {text!r}. Give it to a transform."
            )
        return [call for part in node.args for call in _calls(part, text)] or [Call(name="Identity", keywords=())]
    if name not in METHODS:
        raise ValueError(
            f"`methods` must name known transforms; got {name!r} in {text!r}. "
            f"Did you mean {_nearest(name, [*METHODS, 'chain'])!r}?"
        )
    if node.args:
        raise ValueError(f"`{name}` must be given keywords only; got {text!r}. Write {name}(keyword=value).")
    keywords = dict(_keyword(name, keyword, text) for keyword in node.keywords)
    if len(keywords) < len(node.keywords):
        raise ValueError(f"`{name}` must be given each keyword once; got {text!r}. Leave one out.")
    return [Call(name=name, keywords=tuple(sorted(keywords.items())))]


def _keyword(name: str, keyword: ast.keyword, text: str) -> tuple[str, Any]:
    """One keyword and its literal value."""
    accepted = Call(name=name, keywords=()).accepted
    if keyword.arg not in accepted:
        cure = f"Did you mean {_nearest(keyword.arg, accepted)!r}?" if accepted and keyword.arg else "Leave it out."
        raise ValueError(f"`{name}` must be given known keywords; got {keyword.arg!r} in {text!r}. {cure}")
    try:
        value = ast.literal_eval(keyword.value)
    except (ValueError, TypeError):
        value = keyword.value
    if isinstance(value, list):
        value = tuple(value)
    numbers = isinstance(value, tuple) and all(type(item) in (int, float) for item in value)
    if not (numbers or value is None or type(value) in (int, float, bool, str)):
        raise ValueError(
            f"`{keyword.arg}` must be a number, True, False, None, a string or a tuple of numbers; got "
            f"{ast.unparse(keyword.value)!r} in {text!r}. Write the value out."
        )
    return keyword.arg, value


def _fields(name: str) -> tuple[Field[Any], ...]:
    """The keywords that a class takes."""
    return fields(cast(type["DataclassInstance"], METHODS[name]))


def _number(value: Any) -> float | None:
    """A finite number as a float, None for anything else."""
    if type(value) not in (int, float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _nearest(name: str, known: Iterable[str]) -> str:
    return max(known, key=lambda other: difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio())


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"chain({', '.join(parts)})"


def _written(name: str, keywords: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{keyword}={value!r}' for keyword, value in keywords.items())})"

"""A method as text: `"YaRN(beta_fast=8)"`, `"chain(NTKAware(), Resonance())"`, `"chain(YaRN(), SelfExtend()) @ full"`.

The text is read with `ast`, never evaluated: calls of the public classes with literal keywords. What a sweep knows
better than its config (`factor`, `original_length`) is left out of the text and filled in per cell. The layers that
the method edits stand behind an `@`.
"""

import ast
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rope_jax.attention.score_maps import SCORE_MAPS, ScoreMap
from rope_jax.experiment.calls import KNOWN, LOGIT_SCALES, Call, number, written
from rope_jax.experiment.layers import CHOICES, Layers
from rope_jax.scaling import METHODS, chain


@dataclass(frozen=True, kw_only=True)
class Method:
    """A parsed method: its calls in the order in which they edit the schedule, a score map or logit scale among them.

    Example:
      >>> method = parse_method("YaRN()")
      >>> method.text(original_length=64)
      'YaRN(beta_fast=4.0)'
      >>> method.transform(factor=2.0, original_length=64).beta_fast
      4.0
    """

    calls: tuple[Call, ...]
    layers: Layers = "auto"
    """Which layers it edits; "auto" are those that meet distances beyond their training."""

    @property
    def takes_factor(self) -> bool:
        """Whether the factor of a cell changes the method: some call awaits it (a dynamic one stays at 1)."""
        return any(call.follows_factor for call in self.calls)

    @property
    def written_factor(self) -> float | None:
        """The first factor that the text writes out, None without one (or with what is no number)."""
        factors = [
            dict(call.keywords)["factor"]
            for call in self.calls
            if call.name in METHODS and "factor" in dict(call.keywords)
        ]
        return number(factors[0]) if factors else None

    @property
    def needs_length(self) -> bool:
        """Whether the frequencies depend on the length that is evaluated."""
        return any(call.name in METHODS and METHODS[call.name].needs_length for call in self.calls)

    @property
    def frequencies_only(self) -> bool:
        """Whether a schedule says all of it: no score map, no logit scale."""
        return all(call.name in METHODS for call in self.calls)

    @property
    def scales_only(self) -> bool:
        """Whether it is nothing but a logit scale."""
        return all(call.name in LOGIT_SCALES for call in self.calls)

    @property
    def label(self) -> str:
        """Short name for tables and plots: what was written, without empty parentheses."""
        parts = " + ".join(written(call.name, dict(call.keywords)).removesuffix("()") for call in self.calls)
        return parts if self.layers == "auto" else f"{parts}, {self.layers} layers"

    def text(self, *, original_length: int) -> str:
        """Canonical text: derived keywords written out, the factor and original_length of the cell left out."""
        parts = []
        for call in self.calls:
            filled = call.filled(1.0, original_length)
            hidden = [name for name in call.of_the_cell if call.awaits(name)]
            parts.append(written(call.name, {name: filled[name] for name in sorted(filled) if name not in hidden}))
        return _joined(parts) if self.layers == "auto" else f"{_joined(parts)} @ {self.layers}"

    def transform(self, *, factor: float, original_length: int) -> Callable[..., Any]:
        """The frequency transform for one cell.

        Args:
          factor: target length / trained length, for the calls that leave it out.
          original_length: tokens that the weights were trained on, likewise.

        Raises:
          ValueError: a keyword without a default is neither written nor filled in, or a value breaks a rule.
        """
        built = [call.built(METHODS, factor, original_length) for call in self.calls if call.name in METHODS]
        return chain(*built) if len(built) != 1 else built[0]

    def score_map(self, *, factor: float, original_length: int) -> ScoreMap | None:
        """The score map for one cell, None without one; arguments and errors as in `transform`."""
        calls = [call for call in self.calls if call.name in SCORE_MAPS]
        if not calls or calls[0].idle(factor, original_length):
            return None
        return calls[0].built(SCORE_MAPS, factor, original_length)

    def query_scale(self, *, original_length: int) -> Callable[[Any], Any] | None:
        """The rule that scales queries by position, None without one."""
        rules = [call.built(LOGIT_SCALES, 1.0, original_length) for call in self.calls if call.name in LOGIT_SCALES]
        return rules[0] if rules else None


def parse_method(text: str) -> Method:
    """Read one method expression.

    text = call | call @ layers,   call = Name(keyword=literal, ...) | chain(call, ...),   layers = all | full | sliding

    Args:
      text: a call of a scaling method, a score map or `LogN`, or a chain with at most one of the latter two; keyword
        values are numbers, True, False, None, strings, or tuples and lists of numbers. Layers are full without a
        window and sliding with one. Without `@`, frequencies change in every layer that turns but those whose window
        lies within the trained length, score maps and logit scales in every layer.

    Returns:
      The method, with nothing filled in yet.

    Raises:
      ValueError: not such an expression; an unknown class or keyword (the nearest known one is named); two score maps;
        layers of an unknown kind.

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
    node, layers = _layers(node, text)
    calls = tuple(_calls(node, text))
    for kinds, what in ((SCORE_MAPS, "score map"), (LOGIT_SCALES, "logit scale")):
        names = [call.name for call in calls if call.name in kinds]
        if len(names) > 1:
            got = f"{' and '.join(names)} in {text!r}"
            raise ValueError(f"`chain` must hold at most one {what}; got {got}. Leave one out.")
    return Method(calls=calls, layers=layers)


def _layers(node: ast.expr, text: str) -> tuple[ast.expr, Layers]:
    """The expression in front of the `@`, and what stands behind it."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
        return node, "auto"
    name = ast.unparse(node.right)
    chosen = [choice for choice in CHOICES if choice == name]
    if not chosen:
        raise ValueError(
            f"`methods` must name layers by {', '.join(CHOICES[:-1])} or {CHOICES[-1]}; got {name!r} in {text!r}. "
            f"Did you mean {_nearest(name, CHOICES)!r}?"
        )
    return node.left, chosen[0]


def _calls(node: ast.expr, text: str) -> list[Call]:
    """The calls of an expression, chains flattened."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        raise ValueError(
            f"`methods` must choose layers once, for the whole of a method; got {ast.unparse(node)!r} in {text!r}. "
            "Write the `@` at the end."
        )
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
    if name not in KNOWN:
        raise ValueError(
            f"`methods` must name known methods; got {name!r} in {text!r}. "
            f"Did you mean {_nearest(name, [*KNOWN, 'chain'])!r}?"
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


def _nearest(name: str, known: Iterable[str]) -> str:
    return max(known, key=lambda other: difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio())


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"chain({', '.join(parts)})"

"""The parts that a method is written of: which classes there are, and what a sweep fills in for them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from rope_jax.attention.score_maps import SCORE_MAPS
from rope_jax.logit_scales import LogN
from rope_jax.scaling import METHODS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOGIT_SCALES: Mapping[str, Callable[..., Any]] = MappingProxyType({"LogN": LogN})
KNOWN: Mapping[str, Any] = MappingProxyType({**METHODS, **SCORE_MAPS, **LOGIT_SCALES})
# Turns from which on a pair is left alone. The published 32 belong to 4096 trained tokens: sqrt(4096) / 2. A rule fixed
# beforehand, the same for all that have the parameter, never chosen on the targets.
_SCALED_BETA = MappingProxyType({"YaRN": "beta_fast", "DynamicYaRN": "beta_fast", "NTKByParts": "beta"})
# Further keywords that the factor of a cell decides.
_FOLLOWS = MappingProxyType({"SelfExtend": ("group",)})


@dataclass(frozen=True, kw_only=True)
class Call:
    """One part of a method: the class name and the keywords that were written, as sorted pairs."""

    name: str
    keywords: tuple[tuple[str, Any], ...]

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every keyword that the class takes."""
        return tuple(field.name for field in _fields(self.name))

    def awaits(self, keyword: str) -> bool:
        """Whether the class takes `keyword` and the text leaves it out."""
        return keyword in self.accepted and keyword not in dict(self.keywords)

    @property
    def of_the_cell(self) -> tuple[str, ...]:
        """The keywords that differ from cell to cell when they are left out."""
        return ("factor", "original_length", *_FOLLOWS.get(self.name, ()))

    @property
    def follows_factor(self) -> bool:
        """Whether the factor of a cell changes it."""
        follows = ("factor", *_FOLLOWS.get(self.name, ()))
        return not self.name.startswith("Dynamic") and any(map(self.awaits, follows))

    def filled(self, factor: float, original_length: int) -> dict[str, Any]:
        """The keywords with what the sweep fills in."""
        keywords = dict(self.keywords)
        known: dict[str, Any] = {"original_length": original_length}
        if self.name in SCORE_MAPS:
            known |= _reach(self.name, keywords, factor, original_length)
        else:
            known["factor"] = 1.0 if self.name.startswith("Dynamic") else factor
        if self.name in _SCALED_BETA:
            length = number(keywords.get("original_length", original_length))
            # A written length that has no root is left to the transform, whose check names it.
            if length is not None and length > 0:
                known[_SCALED_BETA[self.name]] = math.sqrt(length) / 2
        return {name: value for name, value in known.items() if self.awaits(name)} | keywords

    def idle(self, factor: float, original_length: int) -> bool:
        """Whether what the sweep fills in leaves every distance as it is, which Leaky ReRoPE has no setting for."""
        leaky = self.name == "LeakyReRoPE" and self.awaits("factor")
        return leaky and self.filled(factor, original_length)["factor"] == 1.0

    def built(self, kinds: Mapping[str, Any], factor: float, original_length: int) -> Any:
        """The value that the call stands for in one cell.

        Raises:
          ValueError: a keyword without a default is neither written nor filled in, or a value breaks a rule.
        """
        keywords = self.filled(factor, original_length)
        missing = [field.name for field in _fields(self.name) if _required(field) and field.name not in keywords]
        if missing:
            raise ValueError(
                f"`methods` must give every keyword that has no default; got {self.name} without "
                f"{', '.join(missing)}. Write {self.name}({missing[0]}=...)."
            )
        return kinds[self.name](**keywords)


def _reach(name: str, written: Mapping[str, Any], factor: float, length: int) -> dict[str, Any]:
    """Settings of a score map with which a model trained on `length` tokens reaches `factor` times as many.

    Rules fixed beforehand: near is half the trained length; ChunkLlama's three quarters and a sixteenth (2402.17463);
    LM-Infinite's whole trained length and ten first tokens (2308.16137).
    """
    near = written.get("window", length // 2)
    beyond = max(length - near, 1) if type(near) is int else 1
    # What is left of the trained length beyond the near tokens holds all others.
    share = max((factor * length - near) / beyond, 1.0) if type(near) is int else 1.0
    return {
        "SelfExtend": {"window": length // 2, "group": 2 ** math.ceil(math.log2(share))},
        "DualChunk": {"chunk": 3 * length // 4, "local": max(length // 16, 1)},
        "ReRoPE": {"window": length // 2},
        "LeakyReRoPE": {"window": length // 2, "factor": share},
        "LMInfinite": {"window": length, "global_tokens": 10},
    }[name]


def _fields(name: str) -> tuple[Field[Any], ...]:
    """The keywords that a class takes."""
    return fields(cast(type["DataclassInstance"], KNOWN[name]))


def number(value: Any) -> float | None:
    """A finite number as a float, None for anything else."""
    if type(value) not in (int, float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def written(name: str, keywords: Mapping[str, Any]) -> str:
    """A call as text."""
    return f"{name}({', '.join(f'{keyword}={value!r}' for keyword, value in keywords.items())})"

"""Reading keys of a configuration: aliases, checks that name the key, and where each number came from."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from rope_jax.huggingface.families import Family

# The spellings of the field; null is absence under each of them.
ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rope_theta": ("rotary_emb_base", "rope_base", "global_rope_theta"),
        "local_rope_theta": ("rope_local_base_freq",),
        "partial_rotary_factor": ("rotary_pct", "rotary_emb_fraction", "rotary_percent", "rope_percent"),
        "rotary_dim": ("rotary_ndims",),
        "mrope_interleaved": ("interleaved",),
        "factor": ("scaling_factor",),
        "original_max_position_embeddings": (
            "original_max_position",
            "original_context_length",
            "max_trained_positions",
        ),
        "max_position_embeddings": ("n_positions", "seq_length", "max_seq_len", "max_sequence_length", "n_ctx"),
        "head_dim": ("kv_channels",),
        "hidden_size": ("n_embd", "d_model"),
        "num_attention_heads": ("n_head", "n_heads"),
        "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    }
)
# Other spellings of these stand in for the first and may mean something else beside it (a training length, a block).
STAND_INS = frozenset(
    ("max_position_embeddings", "head_dim", "hidden_size", "num_attention_heads", "num_hidden_layers")
)


@dataclass(frozen=True)
class Log:
    """What reading a configuration leaves behind: origins of numbers, and doubts."""

    strict: bool
    sources: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def doubt(self, message: str) -> None:
        """Refuse what would have to be guessed; without `strict` go on and keep the message."""
        if self.strict:
            raise ValueError(f"{message} strict=False reads on with a warning.")
        self.warn(message)

    def warn(self, message: str) -> None:
        """Keep a message for the reader of the result."""
        if message not in self.warnings:
            self.warnings.append(message)


@dataclass(frozen=True)
class Fields:
    """One JSON object of the configuration and the path it stands under."""

    values: Mapping[str, Any]
    path: str = ""

    def at(self, key: str) -> str:
        """The full path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def find(self, name: str) -> tuple[Any, str] | None:
        """A key's value and its full path, under any of its spellings.

        Raises:
          ValueError: two spellings with different values.
        """
        keys = [key for key in (name, *ALIASES.get(name, ())) if self.values.get(key) is not None]
        if not keys:
            return None
        first = self.values[keys[0]]
        for other in keys[1:] if name not in STAND_INS else ():
            if self.values[other] != first:
                raise ValueError(
                    f"`{self.at(keys[0])}` and `{self.at(other)}` must agree, being two spellings of one setting; got "
                    f"{first!r} and {self.values[other]!r}. Remove one."
                )
        return first, self.at(keys[0])

    def flag(self, name: str) -> bool | None:
        """A key that is true or false, None where it is absent."""
        found = self.find(name)
        if found is not None and not isinstance(found[0], bool):
            raise TypeError(f"`{found[1]}` must be true or false; got {found[0]!r}.")
        return None if found is None else found[0]

    def integer(self, name: str, least: int = 1) -> tuple[int, str] | None:
        """A whole number of at least `least`, with its path."""
        found = self.find(name)
        if found is None:
            return None
        value, path = found
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or value < least:
            raise ValueError(f"`{path}` must be an integer of at least {least}; got {value!r}.")
        return int(value), path

    def required_integer(self, name: str) -> int:
        """A whole number that must be there."""
        found = self.integer(name)
        if found is None:
            raise ValueError(f"`{self.at(name)}` must be given; got none. Add it to the configuration.")
        return found[0]


def check_real(path: str, value: Any, rule: str, holds: Callable[[float], bool]) -> None:
    """Refuse what is no finite number obeying the rule: a factor in quotes, null in a list, NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"`{path}` must be a number; got {value!r}.")
    if not (math.isfinite(value) and holds(value)):
        raise ValueError(f"`{path}` must be {rule}; got {value!r}.")


@dataclass(frozen=True)
class Rope:
    """The rope dict of one layer group, with what surrounds it."""

    own: Fields
    outer: Fields
    config: Fields
    family: Family
    model: str
    log: Log
    group: str
    # Indices of the group's layers.
    members: tuple[int, ...]
    prefix: str = ""

    def note(self, name: str, origin: str) -> None:
        """Record where a number came from."""
        self.log.sources[self.prefix + name] = origin

    def number(
        self, key: str, rule: str, holds: Callable[[float], bool], *, name: str | None = None, required: bool = False
    ) -> Any:
        """A number of the rope dict as it stands there, None where it is absent."""
        found = self.own.find(key)
        if found is None:
            if required:
                raise ValueError(f"`{self.own.at(key)}` must be given, a number {rule}; got none. Add it.")
            return None
        value, path = found
        check_real(path, value, rule, holds)
        self.note(name or key, path)
        return value

    def factor(self, *, required: bool = True) -> Any:
        """Target length / trained length."""
        return self.number("factor", "at least 1", lambda v: v >= 1, required=required)

    def widest(self, key: str) -> tuple[Any, str] | None:
        """A setting that may stand in the group's dict, around it, or at the top level: the innermost one holds."""
        found = [place.find(key) for place in (self.own, self.outer, self.config)]
        known = [entry for entry in found if entry is not None]
        for value, path in known[1:]:
            if value != known[0][0]:
                # Loaders of the older form overwrite the inner value with a stale outer one; the inner one was meant.
                self.log.warn(f"`{path}` is {value!r}, but `{known[0][1]}` is {known[0][0]!r}; the latter is used.")
        return known[0] if known else None

    def refuse_unknown(self, rope_type: str, keys: tuple[str, ...], others: frozenset[str]) -> None:
        """Doubt keys of the rope dict that its method does not have; null is absence for keys of `others`."""
        spellings = {alias for key in keys for alias in (key, *ALIASES.get(key, ()))}
        for key, value in self.own.values.items():
            if key in spellings or (value is None and key in others):
                continue
            near = get_close_matches(key, sorted(spellings), n=1)
            cure = f"Did you mean `{near[0]}`?" if near else "Remove it, or build the ModelRope by hand."
            self.log.doubt(f'`{self.own.at(key)}` must be a key of the rope type "{rope_type}"; got {value!r}. {cure}')

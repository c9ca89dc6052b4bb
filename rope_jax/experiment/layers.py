"""Which layers a method edits, and what its parts are to each layer group."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array

from rope_jax.attention.score_maps import ScoreMap
from rope_jax.spec import ModelRope

Layers = Literal["auto", "all", "full", "sliding"]
# What may stand behind the `@` of a method; "auto" is a method without one.
CHOICES: tuple[Layers, ...] = get_args(Layers)[1:]
# A hashable form of what a call of the decoder takes by layer group.
GroupMaps = tuple[tuple[str, ScoreMap | None], ...]
Rule = Callable[[Any], Any]


def chosen_groups(rope: ModelRope, windows: Mapping[str, int], layers: Layers) -> tuple[str, ...]:
    """The layer groups of a choice, rotated or not.

    Args:
      rope: the settings, by layer group.
      windows: layer group -> sliding window in tokens.
      layers: "full" are the groups without a window, "sliding" those with one; all of them for the other two.
    """
    if layers in ("auto", "all"):
        return tuple(rope.specs)
    return tuple(group for group in rope.specs if (group in windows) == (layers == "sliding"))


def edited_groups(rope: ModelRope, windows: Mapping[str, int], layers: Layers, trained_length: int) -> tuple[str, ...]:
    """The layer groups of a choice whose frequencies a method edits.

    A group without rotation has nothing to edit. With "auto" neither has one whose sliding window lies within the
    trained length: it meets no distance that training did not show it, so it keeps its frequencies.
    """
    kept = {group for group, window in windows.items() if layers == "auto" and window <= trained_length}
    groups = chosen_groups(rope, windows, layers)
    return tuple(group for group in groups if rope.specs[group] is not None and group not in kept)


@dataclass(frozen=True)
class LogitScale:
    """constant times the product of rules at positions; hashable, since rules are part of a program."""

    constant: float
    rules: tuple[Rule, ...]

    def __call__(self, positions: Any) -> Array:
        """The factor on the query at each position, [] without a rule."""
        return math.prod((rule(positions) for rule in self.rules), start=jnp.float32(self.constant))


def scaled_groups(rope: ModelRope, rule: Rule | None, groups: tuple[str, ...]) -> dict[str, Rule | None] | None:
    """What every layer group's queries are multiplied by: the model's own factors and, in some groups, a method's.

    Args:
      rope: the settings, by layer group.
      rule: the method's, None without one.
      groups: those that have it.

    Returns:
      Layer group -> rule or None; None where nothing scales.
    """
    made: dict[str, Rule | None] = {}
    for group, spec in rope.specs.items():
        constant = 1.0 if spec is None else spec.softmax_scale
        own = None if spec is None else spec.query_scale
        rules = tuple(each for each in (own, rule if group in groups else None) if each is not None)
        made[group] = LogitScale(constant, rules) if rules or constant != 1 else None
    return made if any(made.values()) else None

"""What configurations and caches check at construction: counts, flags, names, dtypes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from rope_jax.attention import Sharding
from rope_jax.attention.validation import held_by_float32

CACHE_DTYPES = ("float32", "bfloat16", "float16")


def check_count(name: str, value: Any, *, none: str | None = None) -> Any:
    """An integer from 1 on, as one of Python's; `none` says what None does, where it is allowed."""
    if value is None and none is not None:
        return None
    cure = "Write a whole number from 1 on" + ("." if none is None else f"; None {none}.")
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be an integer{'' if none is None else ' or None'}; got {value!r}. {cure}")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1; got {value}. {cure}")
    return int(value)


def settle_counts(config: Any, **counts: str | None) -> None:
    """Checks fields of a frozen config, which keeps them as Python's integers; the words say what None does."""
    for name, none in counts.items():
        object.__setattr__(config, name, check_count(name, getattr(config, name), none=none))


def check_flag(name: str, value: Any) -> None:
    """True or False, never a word or a number that stands for one."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False; got {value!r}. A string or a number is no switch.")


def check_positive(name: str, value: Any, *, none: str | None = None) -> None:
    """A positive finite number; `none` says what None does, where it is allowed."""
    if value is None and none is not None:
        return
    rule = "a positive number" + ("" if none is None else " or None")
    cure = "Write a number above 0 that float32 can hold" + ("." if none is None else f"; None {none}.")
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"`{name}` must be {rule}; got {value!r}. {cure}")
    if not (value > 0 and held_by_float32(value)):
        raise ValueError(f"`{name}` must be {rule}; got {value!r}. {cure}")


def check_qk_norm(value: Any) -> None:
    """True, False or "full"."""
    if not isinstance(value, bool) and value != "full":
        raise TypeError(
            f'`qk_norm` must be True, False or "full"; got {value!r}. True normalises every head, "full" all together.'
        )


def check_sharding(value: Any) -> None:
    """A `Sharding` or None."""
    if value is not None and not isinstance(value, Sharding):
        raise TypeError(f"`sharding` must be a Sharding or None; got {value!r}. Write Sharding() for the usual axes.")


def biased(value: Any, places: tuple[str, ...]) -> tuple[str, ...]:
    """The projections that have a bias, in order: all for True, none for False, or those that are named."""
    if isinstance(value, bool):
        return places if value else ()
    cure = f"Name some of {', '.join(places)}."
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"`bias` must be True, False or a sequence of names; got {value!r}. {cure}")
    if not set(value) <= set(places) or len(set(value)) < len(value):
        raise ValueError(f"`bias` must name projections, each once; got {tuple(value)}. {cure}")
    return tuple(place for place in places if place in value)


def check_member(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """One of a few names."""
    if not isinstance(value, str) or value not in allowed:
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"`{name}` must be one of {', '.join(allowed)}; got {value!r}. Choose one of them.")


def check_cache_sizes(window: Any, **sizes: Any) -> None:
    """The sizes of a cache, `capacity` among them, and a ring that holds its window."""
    for name, size in sizes.items():
        check_count(name, size)
    check_count("window", window, none="makes no ring")
    if window is not None and sizes["capacity"] < window:
        raise ValueError(
            f"`capacity` must be at least `window` in a ring; got {sizes['capacity']} for window {window}. "
            "Give window + n - 1 slots to append n tokens at a time."
        )


def check_dtype(dtype: Any) -> np.dtype:
    """A dtype that keys and values can be stored in."""
    # float64 where x64 is on.
    widest = jnp.result_type(float).name
    allowed = CACHE_DTYPES if widest in CACHE_DTYPES else (*CACHE_DTYPES, widest)
    try:
        found = None if dtype is None else jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in allowed:
        raise TypeError(f"`dtype` must be one of {', '.join(allowed)}; got {dtype!r}. Choose one of them.")
    return found


def group_names(pattern: Any) -> tuple[str, ...]:
    """The layer groups of a pattern: the letters of a string, or names."""
    if not isinstance(pattern, Sequence) or not all(isinstance(name, str) for name in pattern):
        raise TypeError(
            f'`pattern` must be a string or a sequence of strings; got {pattern!r}. "LLG" means ("L", "L", "G").'
        )
    return tuple(pattern)


def stream_axes(pair_axes: Any, positional: str) -> tuple[int, ...] | None:
    """The position stream of every pair, or None for one stream."""
    if pair_axes is None:
        return None
    cure = "RopeSpec.pair_axes is such a tuple; None turns all pairs by one stream."
    numbers = isinstance(pair_axes, Sequence) and not isinstance(pair_axes, str)
    if not numbers or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in pair_axes):
        raise TypeError(f"`pair_axes` must be integers or None; got {pair_axes!r}. {cure}")
    if not pair_axes or min(pair_axes) < 0:
        raise ValueError(f"`pair_axes` must name a stream, 0 or above, for every pair; got {pair_axes!r}. {cure}")
    if positional != "rope":
        raise ValueError(f"`pair_axes` must be None for positional={positional!r}; got {pair_axes!r}. Nothing turns.")
    return tuple(int(axis) for axis in pair_axes)


def check_one_stream(pair_axes: tuple[int, ...] | None) -> None:
    """Keys can be rotated on only from the position they were rotated at, the only one that a cache keeps."""
    if pair_axes is not None:
        raise ValueError(
            f"`keys` must have turned by one position each to be rerotated; got `pair_axes` {pair_axes}. Prefill again."
        )


def check_layer_groups(layer_groups: Any) -> None:
    """The group of every layer: a tuple of names, for it becomes part of the structure of a cache."""
    cure = "Pass `layer_groups` of the decoder's config."
    if not isinstance(layer_groups, tuple) or not all(isinstance(name, str) for name in layer_groups):
        raise TypeError(f"`layer_groups` must be a tuple of strings; got {layer_groups!r}. {cure}")
    if not layer_groups or not all(layer_groups):
        raise ValueError(f"`layer_groups` must name the group of at least one layer; got {layer_groups!r}. {cure}")


def window_pairs(windows: Any) -> tuple[tuple[str, int], ...]:
    """(group, tokens) pairs, from pairs or a dict."""
    cure = 'Write (("L", 16),) or {"L": 16}.'
    if not isinstance(windows, Mapping | Sequence):
        raise TypeError(f"`windows` must be (group, tokens) pairs or a dict; got {windows!r}. {cure}")
    pairs = tuple(windows.items()) if isinstance(windows, Mapping) else tuple(windows)
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f"`windows` must be (group, tokens) pairs; got {windows!r}. {cure}")
    return tuple((group, int(tokens) if isinstance(tokens, np.integer) else tokens) for group, tokens in pairs)


def check_pattern(pattern: tuple[str, ...], layers: int) -> None:
    """Between one group and one for every layer."""
    if not 1 <= len(pattern) <= layers or not all(pattern):
        raise ValueError(
            f"`pattern` must name between 1 and {layers} (the layers) groups; got {pattern}. "
            "It is repeated over the layers."
        )


def check_group_windows(windows: tuple[tuple[str, int], ...], groups: tuple[str, ...]) -> None:
    """Windows of groups that exist, each once, of at least one token."""
    named = [group for group, _ in windows]
    if len(set(named)) != len(named) or not set(named) <= set(groups):
        raise ValueError(
            f"`windows` must name groups of the pattern {groups}, each once; got {named}. "
            "Add the group to the pattern or drop its window."
        )
    for group, window in windows:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(
                f"`windows` must give every group at least 1 token; got {window!r} for {group!r}. "
                "A window counts the token itself; a group without one sees the whole past."
            )

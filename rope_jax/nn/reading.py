"""Reading tokens into a cache in chunks, in one program whatever their number."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.nn.decoder import Decoder
from rope_jax.nn.hybrid import AnyCache, stored, with_stored
from rope_jax.nn.prompt import Prompt, aligned
from rope_jax.nn.query_scales import QueryScaleLike
from rope_jax.nn.schedules import ScheduleLike
from rope_jax.nn.score_maps import ScoreMapLike
from rope_jax.nn.slots import Store

QueryRule = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any] | None] | None


@partial(jax.tree_util.register_dataclass, data_fields=["decoder"], meta_fields=["score_map", "query_scale"])
@dataclass(frozen=True, eq=False)
class Reader:
    """A decoder with its score map and the rule of its query scale, which are part of the program.

    Both are for all layer groups, or (group, map or rule) pairs.
    """

    # Any: tree transformations build readers of placeholders.
    decoder: Decoder | Any
    score_map: Any
    query_scale: Any

    @classmethod
    def of(cls, decoder: Decoder, score_map: ScoreMapLike, query_scale: QueryRule = None) -> "Reader":
        """Maps and rules by group become pairs, which can be hashed.

        Raises:
          TypeError: a query scale that is no rule, or something that no program can be told apart by.
        """
        given = {"score_map": score_map, "query_scale": query_scale}
        for name, value in given.items():
            for one in value.values() if isinstance(value, Mapping) else (value,):
                _check_part_of_program(name, one)
        return cls(decoder, *(tuple(x.items()) if isinstance(x, Mapping) else x for x in given.values()))

    def __call__(
        self, token_ids: Array, schedule: ScheduleLike, positions: Array, cache: AnyCache
    ) -> tuple[Float[Array, "batch seq embed"], AnyCache]:
        """The hidden states of tokens, and the cache with them in it."""
        score_map = dict(self.score_map) if isinstance(self.score_map, tuple) else self.score_map
        hidden: tuple[Array, AnyCache] = self.decoder.hidden(
            token_ids,
            schedule,
            positions=positions,
            cache=cache,
            score_map=score_map,
            query_scale=self._query_scale(positions),
        )
        return hidden

    def _query_scale(self, positions: Array) -> QueryScaleLike:
        if isinstance(self.query_scale, tuple):
            return {group: None if rule is None else rule(positions) for group, rule in self.query_scale}
        return None if self.query_scale is None else self.query_scale(positions)

    def empty_cache(self, batch: int, room: int, chunk: int, schedule: ScheduleLike) -> AnyCache:
        """A cache for `room` tokens, or a ring that chunks go round when every layer has a window."""
        if self.score_map is not None:
            # Score maps count from the first token: no ring, and keys that can be turned by every region.
            return replace(self.decoder.empty_cache(batch, room, keys="unrotated"), window=None)
        cache = self.decoder.empty_cache(batch, room, chunk=chunk)
        turning = schedule.values() if isinstance(schedule, Mapping) else (schedule,)
        if all(part is None for part in turning):
            return cache
        # Stated beforehand, the schedule leaves the structure of the cache as it is: one program for every chunk.
        return cache.rerotate(schedule)

    def prefill(
        self, prompt: Prompt, schedule: ScheduleLike, *, chunk: int, room: int
    ) -> tuple[Float[Array, "batch embed"], AnyCache]:
        """The hidden state of every row's last token, and a cache with space for `room` tokens more."""
        prompt = aligned(*prompt, multiple=chunk)
        batch, width = prompt.token_ids.shape
        cache = self.empty_cache(batch, rounded(width + room), chunk, schedule)
        for start in range(0, width, chunk):
            token_ids, positions = (jnp.asarray(ids[:, start : start + chunk]) for ids in prompt)
            hidden, cache = _read(self, token_ids, schedule, positions, *apart(cache))
        return hidden, cache


def _check_part_of_program(name: str, value: Any) -> None:
    found = getattr(value, "__qualname__", type(value).__name__)
    if name == "query_scale" and value is not None and not callable(value):
        raise TypeError(
            f"`query_scale` must be a rule on positions, a dict of them by layer group, or None; got {found}. "
            "RopeSpec.logit_scale is a rule."
        )
    try:
        hash(value)
    except TypeError:
        cure = (
            "A dict of RopeSpec.logit_scale by layer group is." if name == "query_scale" else "A frozen dataclass is."
        )
        raise TypeError(f"`{name}` must be hashable, since it is part of the program; got {found}. {cure}") from None


def apart(cache: AnyCache) -> tuple[Store, AnyCache]:
    """Keys and values, to be donated to a program so that they are not held twice, and the rest, which is not.

    The rest shares arrays, such as those of the schedule, with others that are still needed.
    """
    store = stored(cache)
    return store, with_stored(cache, ((None, None),) * len(store))


@partial(jax.jit, donate_argnames="store")
def _read(
    reader: Reader, token_ids: Array, schedule: ScheduleLike, positions: Array, store: Store, rest: AnyCache
) -> tuple[Float[Array, "batch embed"], AnyCache]:
    hidden, cache = reader(token_ids, schedule, positions, with_stored(rest, store))
    return hidden[:, -1], cache


def rounded(tokens: int) -> int:
    """At most a quarter more, and at least 64: similar requests then share a program."""
    step = max(64, 2 ** max(tokens.bit_length() - 3, 0))
    return -(-tokens // step) * step

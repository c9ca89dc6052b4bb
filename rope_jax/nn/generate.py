"""Generation: read the prompt in chunks, then one token at a time, in programs that know no position and no length."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, Integer

from rope_jax.nn.checks import check_count, check_member
from rope_jax.nn.decoder import Decoder
from rope_jax.nn.hybrid import AnyCache, with_stored
from rope_jax.nn.new_tokens import Generated, NewTokens
from rope_jax.nn.prompt import read_prompt
from rope_jax.nn.reading import QueryRule, Reader, apart, rounded
from rope_jax.nn.sampling import Sampler, sampler
from rope_jax.nn.schedules import ScheduleLike
from rope_jax.nn.score_maps import ScoreMapLike
from rope_jax.nn.slots import Store
from rope_jax.nn.timeline import Rule, timeline

_LARGEST_CHUNK = 512


@runtime_checkable
class Scheduled(Protocol):
    """A decoder that comes with its schedules, as pretrained models do."""

    decoder: Decoder

    def schedules(self, length: Any = None) -> Mapping[str, Any]:
        """The schedule of every layer group at a length, or at an array of lengths [batch, seq]."""


@runtime_checkable
class Scaled(Protocol):
    """What else such a model may come with: factors on its queries, such as a temperature by position."""

    def query_rules(self) -> QueryRule:
        """A rule from positions to a factor for every layer group, None where nothing scales."""


def generate(
    model: Scheduled | Decoder | Any,
    token_ids: Integer[Array | np.ndarray, "batch seq"] | Any,
    *,
    max_new_tokens: int,
    positions: Integer[Array | np.ndarray, "rows seq"] | Any = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    rng: Any = None,
    reserve: int | None = None,
    chunk: int | None = None,
    end_ids: Sequence[int] = (),
    on_schedule_change: str = "recompute",
    schedule: Rule | ScheduleLike | str = "model",
    score_map: ScoreMapLike = None,
    query_scale: QueryRule | str = "model",
) -> Generated:
    """New tokens after each row's own.

        x_t ~ softmax(logits(x_<t) / temperature), cut to its nucleus;   x_t = argmax logits(x_<t) at temperature 0

    A length-dependent schedule is that of a request: `length = n + max(reserve, t)` for a row of n tokens at its new
    token number t, so it changes, if at all, where the reserve ends. Rows do not influence each other.

    Args:
      model: a decoder with its schedules (`.decoder`, `.schedules(length)` and, where logits are scaled,
        `.query_rules()`), or a `Decoder` with `schedule`.
      token_ids: [batch, seq] integers; those of padding are not read.
      max_new_tokens: at least 1.
      positions: [batch or 1, seq] integers, in tokens, rising; negative is padding, on any side; None: no padding.
        A row goes on from its last position + 1.
      temperature: divides the logits; 0 takes the likeliest token.
      top_p: draw from the fewest likeliest tokens whose probabilities reach this sum (arXiv 1904.09751).
      rng: a key of `jax.random`, for a temperature above 0.
      reserve: tokens beyond the prompt that the length of the request counts from its beginning; None: none. With
        max_new_tokens - 1 or more no schedule changes.
      chunk: tokens read at a time; None: 512, or a short prompt at once.
      end_ids: tokens that end a row; they are its last.
      on_schedule_change: "recompute" reads all tokens again under the new schedule, which equals the whole forward at
        every step; "keep" goes on under the first schedule, which does not: the model then runs at a shorter length
        than it has.
      schedule: for a `Decoder` what its call takes, or a rule from lengths [batch, seq] to that, with those leading
        axes (`RopeSpec.schedule`); "model": that of the model.
      score_map: as a call of the decoder takes it.
      query_scale: a rule from positions to what a call of the decoder takes, `LogN` or `RopeSpec.logit_scale`, or a
        dict of them by layer group; None: no scale; "model": the rules of the model, none for a `Decoder`. Rules are
        part of the program, hence hashable.

    Raises:
      TypeError, ValueError: an argument breaks its rule, before anything is computed; logits that are not finite.

    Differs from other libraries in that a schedule never depends on an earlier call, another row, or a width.

    Example:
      >>> from flax import nnx
      >>> from rope_jax import RopeSpec
      >>> from rope_jax.nn import DecoderConfig
      >>> model = Decoder(DecoderConfig(vocab=11, embed=16, layers=1, heads=2), rngs=nnx.Rngs(0))
      >>> new = generate(model, np.array([[1, 2, 3]]), max_new_tokens=2, schedule=RopeSpec(8).schedule)
      >>> new.positions.tolist()
      [[3, 4]]
    """
    decoder, rule = _parts(model, schedule)
    query_scale = _rules(model, query_scale)
    max_new_tokens = check_count("max_new_tokens", max_new_tokens)
    chunk = check_count("chunk", chunk, none="reads 512 tokens at a time")
    reserve = _checked_reserve(reserve)
    check_member("on_schedule_change", on_schedule_change, ("recompute", "keep"))
    prompt = read_prompt(token_ids, positions, decoder.config, max_new_tokens)
    draw = sampler(temperature, top_p, rng, end_ids, decoder.config.vocab)
    chunk = min(rounded(prompt.longest), _LARGEST_CHUNK) if chunk is None else chunk
    keep = on_schedule_change == "keep"
    times = timeline(rule, prompt.last + 1, reserve=reserve, steps=max_new_tokens, keep=keep)
    written = NewTokens.empty(prompt, max_new_tokens)
    reader, start, prefills = Reader.of(decoder, score_map, query_scale), 0, 0
    while start < max_new_tokens and not written.done.all():
        stop = times.next_change(start, ~np.asarray(written.done))
        current = times.at(start)
        tokens = written.after(prompt, start)
        hidden, cache = reader.prefill(tokens, current, chunk=chunk, room=max_new_tokens - start)
        written, cache = _decode(reader, hidden, *apart(cache), current, written, jnp.int32(stop), draw)
        cache.check()
        start, prefills = stop, prefills + 1
    return written.generated(prompt, max_new_tokens, prefills)


@partial(jax.jit, donate_argnames="store")
def _decode(
    reader: Reader,
    hidden: Float[Array, "batch embed"],
    store: Store,
    rest: AnyCache,
    schedule: ScheduleLike,
    written: NewTokens,
    stop: Int32[Array, ""],
    draw: Sampler,
) -> tuple[NewTokens, AnyCache]:
    """Token after token until there are `stop` of them or every row is done; the last is not read."""

    def goes_on(carry: tuple[NewTokens, AnyCache]) -> Bool[Array, ""]:
        return (carry[0].filled < stop) & ~jnp.all(carry[0].done)

    def step(carry: tuple[NewTokens, AnyCache]) -> tuple[NewTokens, AnyCache]:
        written, cache = carry
        token_ids, positions = written.newest()
        hidden, cache = reader(token_ids, schedule, positions, cache)
        return written.with_next(reader.decoder, hidden[:, 0], draw), cache

    return jax.lax.while_loop(
        goes_on, step, (written.with_next(reader.decoder, hidden, draw), with_stored(rest, store))
    )


def _checked_reserve(reserve: Any) -> int:
    cure = "Count the tokens that you expect beyond the prompt."
    if reserve is None:
        return 0
    if isinstance(reserve, bool) or not isinstance(reserve, int | np.integer):
        raise TypeError(f"`reserve` must be an integer or None; got {reserve!r}. {cure}")
    if reserve < 0:
        raise ValueError(f"`reserve` must be at least 0; got {reserve}. {cure}")
    return int(reserve)


def _parts(model: Any, schedule: Any) -> tuple[Decoder, Rule | ScheduleLike]:
    """The decoder, and its schedule or the rule that gives it."""
    own = isinstance(schedule, str) and schedule == "model"
    if isinstance(schedule, str) and not own:
        raise ValueError(
            f'`schedule` must be a schedule, a rule that gives one, or "model"; got {schedule!r}. Make one.'
        )
    if isinstance(model, Decoder):
        if own:
            raise ValueError(
                '`schedule` must be given for a Decoder, which has none; got "model". '
                "Pass RopeSpec.schedule, a FrequencySchedule, a dict by layer group, or None."
            )
        return model, schedule
    if not isinstance(model, Scheduled) or not isinstance(model.decoder, Decoder):
        raise TypeError(
            f"`model` must be a Decoder, or have one with its schedules; got {type(model).__name__}. "
            "load_pretrained gives such a model."
        )
    return model.decoder, model.schedules if own else schedule


def _rules(model: Any, query_scale: Any) -> QueryRule:
    """The rules of the queries' factors: as given, or those that the model comes with."""
    if not isinstance(query_scale, str):
        given: QueryRule = query_scale
        return given
    if query_scale != "model":
        raise ValueError(
            f'`query_scale` must be a rule, a dict of them by layer group, None or "model"; got {query_scale!r}. '
            "RopeSpec.logit_scale is a rule."
        )
    return model.query_rules() if isinstance(model, Scaled) else None

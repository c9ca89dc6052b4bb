"""A decoder-only transformer whose rotary schedule is an argument: one compiled program serves every method."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32, Int32, Integer

from rope_jax.attention.sharding import looked_up
from rope_jax.nn.agreement import check_layer_cache, check_order_alone, check_streams
from rope_jax.nn.block import Block, Tokens, make_norm, run_layers
from rope_jax.nn.cache import Keys
from rope_jax.nn.config import DecoderConfig
from rope_jax.nn.hybrid import AnyCache, empty_cache, parts_of, places, reserve, stored, with_stored
from rope_jax.nn.layers import project
from rope_jax.nn.positional import LearnedPositions, alibi_slopes, sinusoids
from rope_jax.nn.query_scales import QueryScaleLike, group_query_scales
from rope_jax.nn.schedules import GroupSchedules, ScheduleLike, by_group, group_tables
from rope_jax.nn.score_maps import Mapped, ScoreMapLike, group_regions, mapped_groups
from rope_jax.positions import check_positions, is_traced


class Decoder(nnx.Module):
    """Embedding, layers of attention and MLP under one scan, final norm, unembedding.

    Args:
      config: sizes and options.
      rngs: initialises the weights.

    Example:
      >>> from rope_jax import geometric_schedule
      >>> model = Decoder(DecoderConfig(vocab=11, embed=16, layers=2, heads=2), rngs=nnx.Rngs(0))
      >>> token_ids = jnp.array([[1, 2, 3]])
      >>> model(token_ids, geometric_schedule(8), positions=jnp.array([[0, 1, 2]])).shape
      (1, 3, 11)
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        shape, normal = (config.vocab, config.embed), nnx.initializers.normal
        self.embedding = nnx.Param(
            normal(config.embed**-0.5 if config.tied else 1.0)(rngs.params(), shape, jnp.float32)
        )

        @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: None})
        def layers(rngs: nnx.Rngs) -> Block:
            return Block(config, rngs=rngs)

        self.blocks = layers(rngs.split(config.layers))
        self.norm = make_norm(config)
        learned = config.positional == "learned"
        self.learned = LearnedPositions(config.max_length or 0, config.embed, rngs=rngs) if learned else None
        lecun = nnx.initializers.lecun_normal()
        self.unembedding = None if config.tied else nnx.Param(lecun(rngs.params(), shape[::-1], jnp.float32))

    def __call__(
        self,
        token_ids: Integer[Array, "batch seq"] | Any,
        schedule: ScheduleLike,
        *,
        positions: Integer[Array, "rows seq"] | Any,
        segments: Integer[Array, "rows seq"] | Any = None,
        cache: AnyCache | None = None,
        score_map: ScoreMapLike = None,
        query_scale: QueryScaleLike = None,
        streams: Integer[Array, "axes rows seq"] | Any = None,
        order: str = "any",
    ) -> Any:
        """Logits of the next token after every token.

        Args:
          token_ids: [batch, seq] integers below vocab; those of padding are not read.
          schedule: what turns queries and keys: a `FrequencySchedule` for all layers, a dict of layer group to
            schedule or None (the group does not turn), or None. Leading axes: none; those of the positions, each 1 or
            equal (a schedule per row or token); or kv heads in front of those, [kv_heads, 1, 1] for one per head.
            A schedule is frequencies and attention scale: a spec's layout and pair axes belong in the config, its
            logit scales in `query_scale`.
          positions: [batch or 1, seq] integers, in tokens; negative is padding.
          segments: [batch or 1, seq] document ids, 0 is padding; without a cache only.
          cache: from `empty_cache` or an earlier call; it is not changed.
          score_map: distances by another rule than p_q - p_k, for all layer groups or by group, None where scores stay
            plain; one map per call. A group without a schedule, or whose sliding window ends before the map changes a
            distance, keeps its plain way. A cache must then hold unrotated keys and be no ring.
          query_scale: what queries are multiplied by after the rotation, so that all logits of a token grow by it: a
            floating array [] or [batch or 1, seq], or a dict of them by layer group, None where nothing scales.
            `ModelRope.query_scales(positions)` makes it.
          streams: [axes, batch or 1, seq] integers, the positions that pairs turn by where the config has `pair_axes`
            (m-RoPE); None: `positions` in all of them, as for text. Who sees whom, windows and logit scales go by
            `positions`, which count tokens in their order, as published models have it: the patches of an image
            share a temporal position, and would all see each other by that.
          order: "any"; "increasing" or "contiguous" as `attend` takes it, which lets kernels with static masks serve.
            Without a cache only. With `sharding.order = "zigzag"` it speaks of the row as it was before it was dealt
            out.

        Returns:
          float32 [batch, seq, vocab]; with a cache, that and the cache with these tokens in it. The logits of padding
          are finite and mean nothing. Traced token ids or learned positions that are out of range give NaN.

        Raises:
          TypeError, ValueError: what does not fit, before anything is computed.
        """
        hidden = self.hidden(
            token_ids,
            schedule,
            positions=positions,
            segments=segments,
            cache=cache,
            score_map=score_map,
            query_scale=query_scale,
            streams=streams,
            order=order,
        )
        if cache is None:
            return self.unembed(hidden)
        return self.unembed(hidden[0]), hidden[1]

    def hidden(
        self,
        token_ids: Integer[Array, "batch seq"] | Any,
        schedule: ScheduleLike,
        *,
        positions: Integer[Array, "rows seq"] | Any,
        segments: Integer[Array, "rows seq"] | Any = None,
        cache: AnyCache | None = None,
        score_map: ScoreMapLike = None,
        query_scale: QueryScaleLike = None,
        streams: Integer[Array, "axes rows seq"] | Any = None,
        order: str = "any",
    ) -> Any:
        """Hidden states [batch, seq, embed] after the final norm, in the config's dtype; otherwise as a call."""
        config = self.config
        token_ids = check_positions(token_ids, "token_ids")
        if token_ids.ndim != 2 or 0 in token_ids.shape:
            raise ValueError(
                f"`token_ids` must be [batch, seq], neither empty; got shape {token_ids.shape}. "
                "One row is a batch of one: token_ids[None]."
            )
        check_order_alone(order, cache)
        # Positions that are known stay known inside jit, so that `order` is checked and padding ruled out.
        with nullcontext() if order == "any" else jax.ensure_compile_time_eval():
            positions = _fitting(check_positions(positions), "positions", token_ids.shape)
            if segments is not None:
                segments = _fitting(check_positions(segments, "segments"), "segments", token_ids.shape)
        streams = check_streams(streams, config, token_ids.shape, cache, score_map)
        scales = group_query_scales(query_scale, config.groups, token_ids.shape)
        schedules = self._schedules(schedule)
        if cache is not None:
            check_layer_cache(cache, segments, config, token_ids.shape[0])
        mapped = mapped_groups(score_map, schedules, config, cache)
        padding = positions < 0 if segments is None else (positions < 0) | (segments == 0)
        x = self._embed(token_ids, positions, jnp.broadcast_to(padding, token_ids.shape))
        cache, tokens = self._tokens(positions, segments, mapped or schedules, cache, streams)
        tokens = replace(tokens, scales=scales, order=order)
        store = None if cache is None else stored(cache)
        x, store = run_layers(self.blocks, x, tokens, store, places(cache, config.layer_groups), config)
        x = self.norm(x)
        return x if cache is None else (x, with_stored(cache, store))

    def unembed(self, hidden: Float[Array, "*batch embed"]) -> Float32[Array, "*batch vocab"]:
        """float32 logits of hidden states with any leading axes."""
        kernel = self.embedding[...].T if self.unembedding is None else self.unembedding[...]
        logits, cap = project(hidden, kernel, jnp.float32), self.config.logit_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def empty_cache(
        self, batch: int, capacity: int, *, keys: Keys = "rotated", dtype: Any = None, chunk: int | None = None
    ) -> AnyCache:
        """A cache for all layers, `capacity` tokens a row; `dtype` defaults to the config's.

        When every layer has a window the slots form a ring: `capacity` of the largest window + n - 1 is then enough to
        go on for ever, n tokens at a time. With `chunk`, the most tokens that are appended at a time, layers with a
        window keep window + chunk - 1 tokens and only the others `capacity`.
        """
        return empty_cache(self.config, batch, capacity, keys=keys, dtype=dtype, chunk=chunk)

    def _schedules(self, schedule: ScheduleLike) -> GroupSchedules | None:
        if self.config.positional != "rope" and schedule is not None:
            raise ValueError(
                f"`schedule` must be None for positional={self.config.positional!r}; got one. "
                'Leave it out: only positional="rope" turns by it.'
            )
        return by_group(schedule, self.config.groups, self.config.attention.head_width)

    def _embed(self, token_ids: Array, positions: Int32[Array, "rows seq"], padding: Array) -> Array:
        config, host = self.config, None
        if not is_traced(token_ids) and not is_traced(padding):
            host = np.where(np.asarray(padding), 0, np.asarray(token_ids))
        if host is not None and host.size and not 0 <= host.min() <= host.max() < config.vocab:
            raise ValueError(
                f"`token_ids` must be from 0 to vocab - 1 = {config.vocab - 1}; got {host.min()} to {host.max()}. "
                "Use the vocabulary that the model was made for."
            )
        index = jnp.where(padding, 0, token_ids)
        # A negative index would count from the end.
        index = jnp.where(index < 0, config.vocab, index)
        x = looked_up(self.embedding[...].at[index].get(mode="fill", fill_value=jnp.nan), config.sharding)
        x = x * config.input_scale
        if self.learned is not None:
            x = x + self.learned(positions)
        if config.positional == "sinusoidal":
            x = x + sinusoids(positions, config.embed)
        return x.astype(config.dtype)

    def _tokens(
        self,
        positions: Array,
        segments: Array | None,
        turning: GroupSchedules | Mapped | None,
        cache: AnyCache | None,
        streams: Array | None,
    ) -> tuple[AnyCache | None, Tokens]:
        """What all layers share, and the cache with the slots of the new tokens taken."""
        kv_heads = self.config.attention.kv_count
        slots, held, regions, kv_positions = None, None, None, [positions]
        schedules = None if isinstance(turning, Mapped) else turning
        axes, turns = (None, positions) if streams is None else (self.config.pair_axes, streams)
        new = None if schedules is None else group_tables(schedules, turns, kv_heads, axes)
        if cache is not None:
            cache, slots = reserve(cache, positions, schedules)
            kv_positions = [part.positions for part in parts_of(cache)]
            if cache.keys == "unrotated" and schedules is not None:
                held = tuple(group_tables(schedules, held_at, kv_heads) for held_at in kv_positions)
        slopes = alibi_slopes(self.config.heads) if self.config.positional == "alibi" else None
        mask = {"q_positions": positions, "segments": segments, "slopes": slopes}
        if isinstance(turning, Mapped):
            regions = group_regions(turning, mask | {"kv_positions": kv_positions[0]}, self.config)
        return cache, Tokens(mask, tuple(kv_positions), new, held, slots, regions, None, "any")


def _fitting(ids: Array, argument: str, shape: tuple[int, ...]) -> Array:
    if ids.ndim != 2 or ids.shape[0] not in (1, shape[0]) or ids.shape[1] != shape[1]:
        raise ValueError(
            f"`{argument}` must be [batch or 1, seq] for `token_ids` [batch, seq] = {shape}; got {ids.shape}. "
            "Add an axis for one row: positions[None]."
        )
    return ids

"""The attention block: projections, QK-norm, rotation, attention. Values are never rotated."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Integer

from rope_jax.attention import Region, attend, attend_sharded
from rope_jax.nn.agreement import check_cache, check_order_alone
from rope_jax.nn.attention_config import AttentionConfig
from rope_jax.nn.cache import KVCache
from rope_jax.nn.layers import Dense, RMSNorm
from rope_jax.nn.query_scales import ScalableSoftmax, scaled_queries, token_scale
from rope_jax.nn.schedules import ScheduleLike, by_group
from rope_jax.positions import check_positions
from rope_jax.rotation import rotate
from rope_jax.table import RotaryTable


class RotaryAttention(nnx.Module):
    """Multi-head, grouped-query or multi-query attention over rotated queries and keys.

        o_h = softmax(scale * rotate(norm(x W_q))_h . rotate(norm(x W_k))_g + mask) (x W_v)_g,   y = [o_1 .. o_H] W_o

    Args:
      config: sizes and options; the layout of the rotation is the config's, once and for all.
      rngs: initialises the weights.

    Differs from `flax.nnx.MultiHeadAttention`: positions are arguments, so any chunk of tokens can meet a cache.

    Example:
      >>> from rope_jax import geometric_schedule, rotary_table
      >>> block = RotaryAttention(AttentionConfig(embed=16, heads=2), rngs=nnx.Rngs(0))
      >>> positions = jnp.arange(4)[None]
      >>> block(jnp.ones((1, 4, 16)), rotary_table(geometric_schedule(8), positions), positions=positions).shape
      (1, 4, 16)
    """

    def __init__(self, config: AttentionConfig, *, rngs: nnx.Rngs) -> None:
        width, inner, bias = config.head_width, "qkv" in config.biased, "out" in config.biased
        self.config = config
        self.query = Dense(config.embed, config.heads * width, bias=inner, rngs=rngs)
        self.key = Dense(config.embed, config.kv_count * width, bias=inner, rngs=rngs)
        self.value = Dense(config.embed, config.kv_count * width, bias=inner, rngs=rngs)
        self.out = Dense(config.heads * width, config.embed, bias=bias, rngs=rngs)
        self.query_norm = RMSNorm(width * config.normed_heads[0], config.norm_epsilon) if config.qk_norm else None
        self.key_norm = RMSNorm(width * config.normed_heads[1], config.norm_epsilon) if config.qk_norm else None
        self.sinks = nnx.Param(jnp.zeros(config.heads, jnp.float32)) if config.sinks else None
        self.scalable_softmax = ScalableSoftmax(config.heads) if config.scalable_softmax else None

    def __call__(
        self,
        x: Float[Array, "batch seq embed"],
        table: RotaryTable | None,
        *,
        positions: Integer[Array, "rows seq"] | Any,
        segments: Integer[Array, "rows seq"] | Any = None,
        cache: KVCache | None = None,
        schedule: ScheduleLike = None,
        kv_table: RotaryTable | None = None,
        regions: Sequence[Region] | None = None,
        query_scale: Float[Array, "rows seq"] | Float[Array, ""] | Any = None,
        order: str = "any",
    ) -> Any:
        """Attention of the tokens of x over themselves, or over those of a cache and themselves.

        Args:
          x: [batch, seq, embed], any floating dtype.
          table: cos and sin at `positions`; None: nothing turns (NoPE).
          positions: [batch or 1, seq] integers, in tokens; negative is padding.
          segments: [batch or 1, seq] document ids, 0 is padding; without a cache only.
          cache: keys and values so far.
          schedule: what `table` was made from; a cache of rotated keys remembers it and refuses another.
          kv_table: for a cache of unrotated keys, cos and sin at `cache.reserve(positions)[0].positions`.
          regions: of a score map, at `positions` and, with a cache, which must hold unrotated keys, at those of
            `kv_table`; then in place of every table.
          query_scale: [batch or 1, seq] or [], what queries, and so all logits of a token, are multiplied by after the
            rotation.
          order: as `attend` takes it; without a cache only.

        Returns:
          [batch, seq, embed] in the dtype of x; with a cache, that and the longer cache.

        Raises:
          TypeError, ValueError: x of another shape, arguments that do not go together, and what `KVCache.append` and
            `attend` refuse.
        """
        self._check_input(x)
        if table is not None and not isinstance(table, RotaryTable):
            raise TypeError(
                f"`table` must be a RotaryTable or None; got {type(table).__name__}. "
                "Make it once per forward: rotary_table(schedule, positions)."
            )
        if regions is not None:
            self._check_regions(table, schedule, kv_table, cache)
        positions = check_positions(positions)
        segments = None if segments is None else check_positions(segments, "segments")
        check_order_alone(order, cache)
        scale = None if query_scale is None else token_scale(query_scale, x.shape[:2])
        turned = by_group(schedule, ("all",), self.config.head_width) is not None
        if turned and table is None:
            raise ValueError(
                "`table` must be given with `schedule`; got None, so nothing would turn by it. "
                "Pass rotary_table(schedule, positions), or leave both out."
            )
        if cache is not None:
            config = self.config
            check_cache(cache, segments, config, x.shape[0], layer_groups=None, window=config.window)
            self._check_tables(cache, table, turned, kv_table)
        elif kv_table is not None:
            raise ValueError("`kv_table` must be None without a cache; got a table. Leave it out.")
        q, k, v = self.project(x)
        if table is not None:
            q = rotate(q, table, layout=self.config.layout)
        q = self.sharpened(q, scale, positions, self.config.window)
        if cache is None:
            k = k if table is None else rotate(k, table, layout=self.config.layout)
            tokens = {"q_positions": positions, "kv_positions": positions, "segments": segments}
            return self.read(q, k, v, **tokens, regions=regions, order=order)
        if table is not None and cache.keys == "rotated":
            k = rotate(k, table, layout=self.config.layout)
        cache = cache.append(k, v, positions, schedule)
        k, v = cache.k.astype(x.dtype), cache.v.astype(x.dtype)
        if kv_table is not None:
            k = rotate(k, kv_table, layout=self.config.layout)
        return self.read(q, k, v, q_positions=positions, kv_positions=cache.positions, regions=regions), cache

    def project(self, x: Float[Array, "batch seq embed"]) -> tuple[Array, Array, Array]:
        """Queries, keys and values [batch, seq, heads or kv_heads, head_dim], normalised and not yet rotated."""

        def split(part: Array) -> Array:
            return part.reshape(*x.shape[:2], -1, self.config.head_width)

        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.config.qk_norm != "full":
            q, k = split(q), split(k)
        # Before the rotation: a norm after it would take the attention scale out again.
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        return split(q), split(k), split(v)

    def sharpened(
        self, q: Float[Array, "batch seq heads head_dim"], scale: Array | None, positions: Array, window: Any
    ) -> Float[Array, "batch seq heads head_dim"]:
        """Queries times a factor [batch or 1, seq or 1] and, where the block learns it, s ln n."""
        learned = None if self.scalable_softmax is None else self.scalable_softmax(positions, window)
        return scaled_queries(q, scale, learned)

    def read(
        self,
        q: Float[Array, "batch seq heads head_dim"],
        k: Float[Array, "batch kv kv_heads head_dim"],
        v: Float[Array, "batch kv kv_heads head_dim"],
        *,
        segments: Array | None = None,
        window: Array | int | None = None,
        **rest: Any,
    ) -> Float[Array, "batch seq embed"]:
        """Attention and the output projection, for queries and keys as `attend` takes them."""
        sharding = self.config.sharding
        over = attend if sharding is None else partial(attend_sharded, sharding=sharding)
        seen = over(
            q,
            k,
            v,
            q_segments=segments,
            kv_segments=segments,
            window=self.config.window if window is None else window,
            scale=self.config.scale,
            softcap=self.config.softcap,
            sinks=None if self.sinks is None else self.sinks[...].astype(jnp.float32),
            backend=self.config.backend,
            **rest,
        )
        return self.out(seen.reshape(*q.shape[:2], -1))

    def _check_input(self, x: Any) -> None:
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
            found = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"`x` must be a floating array; got {found}. Embed the tokens first.")
        if x.ndim != 3 or x.shape[-1] != self.config.embed or 0 in x.shape:
            raise ValueError(
                f"`x` must be [batch, seq, embed = {self.config.embed}], no axis empty; got shape {tuple(x.shape)}. "
                "One row is a batch of one: x[None]."
            )

    def _check_regions(self, table: Any, schedule: Any, kv_table: Any, cache: KVCache | None) -> None:
        given = [
            name for name, x in (("table", table), ("schedule", schedule), ("kv_table", kv_table)) if x is not None
        ]
        if given:
            raise ValueError(
                f"`regions` must come without `{given[0]}`, since each turns queries and keys its own way; got both. "
                "Leave it out."
            )
        if cache is not None and cache.keys != "unrotated":
            raise ValueError(
                "`cache` must hold unrotated keys for `regions`, which turn them differently; got rotated ones. "
                'Make it with keys="unrotated".'
            )

    def _check_tables(
        self, cache: KVCache, table: RotaryTable | None, turned: bool, kv_table: RotaryTable | None
    ) -> None:
        if cache.keys == "rotated" and (kv_table is not None or (table is not None and not turned)):
            raise ValueError(
                "`schedule` and no `kv_table` must come with a cache of rotated keys; got "
                f"{'no schedule' if kv_table is None else 'a kv_table'}. The cache remembers what its keys turned by."
            )
        if cache.keys == "unrotated" and (kv_table is None) != (table is None):
            raise ValueError(
                "`kv_table` must be given with `table` for a cache of unrotated keys; got one of the two. "
                "Make it at cache.reserve(positions)[0].positions."
            )

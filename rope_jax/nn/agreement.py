"""Whether a cache and the layers that read it go together: checked before anything is computed."""

from typing import Any

from jaxtyping import Array

from rope_jax.attention.order import check_order_name
from rope_jax.attention.sharding import check_whole_context
from rope_jax.nn.attention_config import AttentionConfig
from rope_jax.nn.cache import KVCache
from rope_jax.nn.config import DecoderConfig
from rope_jax.nn.hybrid import HybridCache
from rope_jax.positions import check_positions


def check_cache(
    cache: Any,
    segments: Any,
    config: AttentionConfig,
    batch: int,
    *,
    layer_groups: tuple[str, ...] | None,
    window: int | None,
) -> None:
    """A `KVCache` of the sizes of the layers and the batch of the tokens, that keeps what the largest window sees."""
    check_whole_context(config.sharding)
    cure = "Use empty_cache of this decoder, or KVCache.empty with the sizes of this block."
    if not isinstance(cache, KVCache):
        raise TypeError(f"`cache` must be a KVCache or None; got {type(cache).__name__}. {cure}")
    if segments is not None:
        raise ValueError(
            "`segments` must be None with a cache: a row of it is one document; got segments. Give each document a row."
        )
    made = (layer_groups, config.kv_count, config.head_width)
    got = (cache.layer_groups, *cache.k.shape[-2:])
    if made != got:
        raise ValueError(f"`cache` must be made for the layer groups, kv heads and head_dim {made}; got {got}. {cure}")
    if cache.layout != config.layout:
        raise ValueError(f"`cache` must have the layout {config.layout!r} of the block; got {cache.layout!r}. {cure}")
    rows = cache.positions.shape[0]
    if rows != batch:
        raise ValueError(f"`cache` must have the batch of the tokens, {batch}; got {rows}. Make it for that batch.")
    if cache.window is not None and (window is None or window > cache.window):
        raise ValueError(
            f"`cache` must keep every key in the window {window} of the layers; got a ring for window "
            f"{cache.window}. Make it for the largest window."
        )


def check_order_alone(order: str, cache: Any) -> None:
    """An order that exists; keys of a cache are other tokens than the queries, of which it could promise nothing."""
    check_order_name(order)
    if order != "any" and cache is not None:
        raise ValueError(
            f'`order` must be "any" with a cache, whose keys are other tokens than the queries; got {order!r}. '
            "Leave it out."
        )


def check_streams(
    streams: Any, config: DecoderConfig, shape: tuple[int, ...], cache: Any, score_map: Any
) -> Array | None:
    """Position streams [axes, batch or 1, seq] of a model whose pairs turn by several; None: all are the positions."""
    if streams is None:
        return None
    if config.pair_axes is None:
        raise ValueError(
            "`streams` must be None for a config without `pair_axes`, which turns all pairs by `positions`; got "
            "streams. Give the config the pair_axes of the spec."
        )
    streams, least = check_positions(streams, "streams"), max(config.pair_axes) + 1
    fits = streams.ndim == 3 and streams.shape[0] >= least and streams.shape[1] in (1, shape[0])
    if not fits or streams.shape[2] != shape[1]:
        raise ValueError(
            f"`streams` must be [axes, batch or 1, seq], at least {least} axes, for tokens [batch, seq] = {shape}; got "
            f"{streams.shape}. Text has the same position in every stream."
        )
    if score_map is not None or (cache is not None and cache.keys != "rotated"):
        raise ValueError(
            "`streams` must come without a `score_map` and with a cache of rotated keys, since it keeps one position "
            "of a key, not its streams; got one of those. Leave the map out, or store rotated keys."
        )
    return streams


def check_layer_cache(cache: Any, segments: Any, config: DecoderConfig, batch: int) -> None:
    """A cache of all layers of a decoder: one, or a ring and another that have them between them."""
    if not isinstance(cache, HybridCache):
        groups, window = config.layer_groups, config.largest_window
        check_cache(cache, segments, config.attention, batch, layer_groups=groups, window=window)
        return
    if cache.layer_groups != config.layer_groups:
        raise ValueError(
            f"`cache` must be made for the layer groups {config.layer_groups}; got {cache.layer_groups}. "
            "Use empty_cache of this decoder."
        )
    for part in cache.parts:
        groups = part.layer_groups or ()
        check_cache(part, segments, config.attention, batch, layer_groups=groups, window=config.window_of(groups))

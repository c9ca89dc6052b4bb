"""The layers of the decoder: one block, and the scan over all of them in which groups of layers are data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from rope_jax.attention.sharding import divided_states
from rope_jax.nn.attention import RotaryAttention
from rope_jax.nn.config import DecoderConfig
from rope_jax.nn.layers import MLP, LayerNorm, RMSNorm
from rope_jax.nn.score_maps import GroupRegions, region_picker
from rope_jax.nn.slots import Places, Slots, Store, written_in_place
from rope_jax.rotation import rotate
from rope_jax.table import RotaryTable

# Further back than any position reaches: the window of a layer that has none.
_WHOLE_PAST = 2**31 - 1

Tables = tuple[RotaryTable, ...] | None


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then that + mlp(norm(that)).

    A norm stands before the sublayer, after it, or both, by `norm_placement`; the absent ones are None.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        before, after = config.norm_placement != "post", config.norm_placement != "pre"
        self.attention_norm = make_norm(config) if before else None
        self.attention = RotaryAttention(config.attention, rngs=rngs)
        self.attention_post_norm = make_norm(config) if after else None
        self.mlp_norm = make_norm(config) if before else None
        self.mlp = MLP(
            config.embed,
            config.mlp_width,
            activation=config.activation,
            gated=config.gated,
            bias="mlp" in config.biased,
            rngs=rngs,
        )
        self.mlp_post_norm = make_norm(config) if after else None


def make_norm(config: DecoderConfig) -> RMSNorm | LayerNorm:
    """The norm of the residual stream."""
    kind = LayerNorm if config.norm == "layer" else RMSNorm
    return kind(config.embed, config.norm_epsilon)


@dataclass(frozen=True, eq=False)
class Tokens:
    """What is the same in every layer: where the tokens and their keys stand, and the tables of the layer groups.

    Attributes:
      mask: positions of the queries, segments and ALiBi slopes, as `attend` takes them.
      kv_positions: those of the keys, in every part of the cache; the tokens' own without one.
      new: one table per layer group at the positions of the tokens; None: nothing turns.
      held: the same at the positions in every part of the cache, when its keys are unrotated.
      slots: where the new keys go in every part of the cache; None without one.
      regions: of a score map, for every layer group, in place of `new` and `held`; None without one.
      scales: what queries are multiplied by, [rows, seq or 1] for every layer group; None: nothing.
      order: of the tokens, as `attend` takes it.
    """

    mask: dict[str, Any]
    kv_positions: tuple[Array, ...]
    new: Tables
    held: tuple[Tables, ...] | None
    slots: tuple[Slots, ...] | None
    regions: GroupRegions | None
    scales: tuple[Array, ...] | None
    order: str


def run_layers(
    blocks: Block,
    x: Float[Array, "batch seq embed"],
    tokens: Tokens,
    store: Store | None,
    places: Places,
    config: DecoderConfig,
) -> tuple[Array, Store | None]:
    """The hidden states after all layers, and the store or None.

    Layers differ by data alone: an index into the tables and windows of the groups, and a place in the store. Where
    `order` lets kernels with static masks serve, a layer picks one of a few programs that know their window.
    """
    new, window, regions = _of_group(tokens.new), _windows(config), region_picker(tokens.regions)
    scales, positions = _of_group(tokens.scales), tokens.mask["q_positions"]
    parts = len(tokens.kv_positions)
    held = [_of_group(tables) for tables in tokens.held or (None,) * parts]

    def turn(heads: Array, tables: Callable[[Array], RotaryTable | None], group: Array) -> Array:
        table = tables(group)
        return heads if table is None else rotate(heads, table, layout=config.layout)

    def layer(carry: tuple[Array, Any], item: tuple[Block, Places, Array]) -> tuple[tuple[Array, Any], None]:
        x, store = divided_states(carry[0], config.sharding), carry[1]
        block, place, group = item
        q, k, v = block.attention.project(_normed(block.attention_norm, x))
        q = block.attention.sharpened(turn(q, new, group), scales(group), positions, window(group))
        if tokens.held is None:
            k = turn(k, new, group)
        if tokens.slots is not None:
            store = written_in_place(store, (k, v), tokens.slots, place)

        def read(part: int, window: Array | int | None) -> Array:
            keys, values = k, v
            if store is not None:
                keys, values = (
                    jax.lax.dynamic_index_in_dim(s, place.layer, keepdims=False).astype(x.dtype) for s in store[part]
                )
            keys, at = turn(keys, held[part], group), tokens.kv_positions[part]
            return block.attention.read(
                *(q, keys, values),
                kv_positions=at,
                window=window,
                regions=regions(group),
                order=tokens.order,
                **tokens.mask,
            )

        # Parts differ in shape and kernels in their windows, so which one a layer takes is a branch.
        ways, way = [partial(read, part, window(group)) for part in range(parts)], place.part
        if tokens.order != "any":
            known = tuple(dict.fromkeys(config.group_windows))
            ways = [partial(read, 0, own) for own in known]
            way = jnp.asarray(np.array([known.index(own) for own in config.group_windows], np.int32))[group]
        seen = ways[0]() if len(ways) == 1 else jax.lax.switch(way, ways)
        attended = x + _normed(block.attention_post_norm, seen)
        fed = block.mlp(_normed(block.mlp_norm, x if config.parallel else attended))
        return (attended + _normed(block.mlp_post_norm, fed), store), None

    groups = np.array([config.groups.index(group) for group in config.layer_groups], np.int32)
    items = (blocks, places, jnp.asarray(groups))
    step = jax.checkpoint(layer) if config.remat else layer
    (x, store), _ = jax.lax.scan(step, (x, store), items, unroll=config.unrolled)
    return divided_states(x, config.sharding), store


def _normed(norm: RMSNorm | LayerNorm | None, x: Array) -> Array:
    return x if norm is None else norm(x)


def _of_group(values: tuple[Any, ...] | None) -> Callable[[Array], Any]:
    """The table or scale of a group that is known only inside the scan."""
    if values is None:
        return lambda group: None
    if len(values) == 1:
        return lambda group: values[0]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
    return lambda group: jax.tree.map(lambda leaf: leaf[group], together)


def _windows(config: DecoderConfig) -> Callable[[Array], Array | int | None]:
    """The window of a group: a number where all groups have the same, which kernels with static masks need."""
    windows = config.group_windows
    if len(set(windows)) == 1:
        return lambda group: windows[0]
    table = np.array([_WHOLE_PAST if window is None else window for window in windows], np.int32)
    return lambda group: jnp.asarray(table)[group]

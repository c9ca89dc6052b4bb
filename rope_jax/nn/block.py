"""The layers of the decoder: one block, and the scan over all of them in which groups of layers are data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from rope_jax.nn.attention import RotaryAttention
from rope_jax.nn.config import DecoderConfig
from rope_jax.nn.layers import MLP, LayerNorm, RMSNorm
from rope_jax.nn.schedules import stacked
from rope_jax.nn.slots import Slots, written
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
      mask: positions, segments and ALiBi slopes, as `attend` takes them.
      new: one table per layer group at the positions of the tokens; None: nothing turns.
      held: the same at the positions in the cache, when its keys are unrotated.
      slots: where the new keys go in the cache; None without one.
    """

    mask: dict[str, Array | None]
    new: Tables
    held: Tables
    slots: Slots | None


def run_layers(
    blocks: Block, x: Float[Array, "batch seq embed"], tokens: Tokens, store: Any, config: DecoderConfig
) -> tuple[Array, Any]:
    """The hidden states after all layers, and the store (k, v) [layers, batch, capacity, kv_heads, head_dim] or None.

    Layers differ by data alone: an index into the tables and windows of the groups.
    """
    new, held, window = _of_group(tokens.new), _of_group(tokens.held), _windows(config)

    def turn(heads: Array, tables: Callable[[Array], RotaryTable | None], group: Array) -> Array:
        table = tables(group)
        return heads if table is None else rotate(heads, table, layout=config.layout)

    def layer(carry: tuple[Array, Any], item: tuple[Block, Array, Array]) -> tuple[tuple[Array, Any], None]:
        x, store = carry
        block, index, group = item
        q, k, v = block.attention.project(_normed(block.attention_norm, x))
        q = turn(q, new, group)
        if tokens.held is None:
            k = turn(k, new, group)
        if tokens.slots is not None:
            store = tuple(written(s, n, tokens.slots, index) for s, n in zip(store, (k, v), strict=True))
            k, v = (jax.lax.dynamic_index_in_dim(s, index, keepdims=False).astype(x.dtype) for s in store)
        k = turn(k, held, group)
        attended = block.attention.read(q, k, v, window=window(group), **tokens.mask)
        attended = x + _normed(block.attention_post_norm, attended)
        fed = block.mlp(_normed(block.mlp_norm, x if config.parallel else attended))
        return (attended + _normed(block.mlp_post_norm, fed), store), None

    groups = np.array([config.groups.index(group) for group in config.layer_groups], np.int32)
    items = (blocks, jnp.arange(config.layers, dtype=jnp.int32), jnp.asarray(groups))
    step = jax.checkpoint(layer) if config.remat else layer
    (x, store), _ = jax.lax.scan(step, (x, store), items, unroll=config.unrolled)
    return x, store


def _normed(norm: RMSNorm | LayerNorm | None, x: Array) -> Array:
    return x if norm is None else norm(x)


def _of_group(tables: Tables) -> Callable[[Array], RotaryTable | None]:
    """The table of a group that is known only inside the scan."""
    if tables is None:
        return lambda group: None
    if len(tables) == 1:
        return lambda group: tables[0]
    together = stacked(tables)
    return lambda group: jax.tree.map(lambda leaf: leaf[group], together)


def _windows(config: DecoderConfig) -> Callable[[Array], Array | int | None]:
    """The window of a group: a number where all groups have the same, which kernels with static masks need."""
    windows = config.group_windows
    if len(set(windows)) == 1:
        return lambda group: windows[0]
    table = np.array([_WHOLE_PAST if window is None else window for window in windows], np.int32)
    return lambda group: jnp.asarray(table)[group]

"""What attention does in every layer: its largest logit and how spread its weights are, on a small part of a batch."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from rope_jax.nn.block import Block
from rope_jax.nn.decoder import Decoder
from rope_jax.nn.layers import RMSNorm
from rope_jax.nn.positional import alibi_slopes
from rope_jax.nn.schedules import group_tables
from rope_jax.rotation import rotate

TOKENS = 512


def attention_statistics(
    graphdef: nnx.GraphDef, params: PyTree, schedules: Any, batch: dict[str, Int[Array, "rows seq"]]
) -> dict[str, Float[Array, "layers"]]:
    """Largest logit and mean entropy of the attention rows of every layer.

        z_ij = scale q_i . k_j as it enters the softmax,   H_i = -sum_j a_ij ln a_ij,   a_i = softmax(z_i)

    over the keys that query i sees (a sink takes part in the softmax, and so in the entropy). The whole matrix of one
    row is formed, so it is for `TOKENS` tokens at most.

    Args:
      graphdef, params: the decoder.
      schedules: what it is called with.
      batch: "inputs", "positions" and perhaps "segments"; the first row is taken, to `TOKENS` tokens.

    Returns:
      "largest_logit", and "entropy" in nats, each float32 [layers].

    Reference: growing logits and vanishing entropy precede divergence (Zhai et al., arXiv 2303.06296).
    """
    model: Decoder = nnx.merge(graphdef, params)
    config = model.config
    row = {name: value[:1, :TOKENS] for name, value in batch.items() if name in ("inputs", "positions", "segments")}
    positions, segments = row["positions"], row.get("segments")
    real = (positions >= 0) if segments is None else (positions >= 0) & (segments > 0)
    named = model._schedules(schedules)
    tables = None if named is None else group_tables(named, positions, config.attention.kv_count)
    apart = positions[0][:, None] - positions[0][None, :]
    seen = (apart >= 0) & real[0][None, :] & real[0][:, None]
    if segments is not None:
        seen &= segments[0][:, None] == segments[0][None, :]
    slopes = alibi_slopes(config.heads) if config.positional == "alibi" else None

    def layer(x: Array, block: Block, group: int) -> tuple[Array, Array, Array]:
        window = config.group_windows[group]
        normed = x if block.attention_norm is None else block.attention_norm(x)
        q, k, v = block.attention.project(normed)
        if tables is not None:
            q, k = (rotate(heads, tables[group], layout=config.layout) for heads in (q, k))
        q = block.attention.sharpened(q, None, positions, window)
        visible = seen if window is None else seen & (apart < window)
        mask = {"q_positions": positions, "kv_positions": positions, "segments": segments, "slopes": slopes}
        attended = x + _normed(block.attention_post_norm, block.attention.read(q, k, v, window=window, **mask))
        fed = block.mlp(_normed(block.mlp_norm, x if config.parallel else attended))
        logits = _logits(block, q, k, None if slopes is None else slopes[:, None, None] * apart.astype(jnp.float32))
        largest, entropy = _summary(logits, visible, block.attention.sinks)
        return attended + _normed(block.mlp_post_norm, fed), largest, entropy

    x = model._embed(row["inputs"], positions, ~real)
    rows = []
    for index, name in enumerate(config.layer_groups):
        block = jax.tree.map(lambda leaf, index=index: leaf[index], model.blocks)
        x, *row_of_layer = layer(x, block, config.groups.index(name))
        rows.append(jnp.stack(row_of_layer))
    table = jnp.stack(rows)
    return {"largest_logit": table[:, 0], "entropy": table[:, 1]}


def _normed(norm: RMSNorm | Any, x: Array) -> Array:
    return x if norm is None else norm(x)


def _logits(block: Block, q: Array, k: Array, lost: Array | None) -> Float[Array, "heads q kv"]:
    """What enters the softmax, for one row in float32."""
    config = block.attention.config
    k = jnp.repeat(k, config.heads // config.kv_count, axis=2)
    scale = config.head_width**-0.5 if config.scale is None else config.scale
    logits = scale * jnp.einsum("qhd,khd->hqk", q[0].astype(jnp.float32), k[0].astype(jnp.float32))
    logits = logits if lost is None else logits - lost
    return logits if config.softcap is None else config.softcap * jnp.tanh(logits / config.softcap)


def _summary(logits: Float[Array, "heads q kv"], visible: Array, sinks: Any) -> tuple[Array, Array]:
    """(largest visible logit, mean entropy over heads and over the queries that see a key)."""
    masked = jnp.where(visible[None], logits, -jnp.inf)
    largest = jnp.max(masked)
    if sinks is not None:
        column = jnp.broadcast_to(sinks[...].astype(jnp.float32)[:, None, None], (*masked.shape[:2], 1))
        masked = jnp.concatenate([masked, column], axis=-1)
    rows = jnp.any(visible, axis=1)
    safe = jnp.where(rows[None, :, None], masked, 0.0)
    weights = jax.nn.softmax(safe, axis=-1)
    entropy = jnp.sum(jax.scipy.special.entr(weights), axis=-1)
    counted = jnp.where(rows[None], entropy, 0.0)
    return largest, jnp.sum(counted) / (logits.shape[0] * jnp.maximum(jnp.sum(rows), 1).astype(jnp.float32))

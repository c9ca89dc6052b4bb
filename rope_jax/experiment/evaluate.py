"""Losses by position, the truncation baseline and passkey accuracy, all from one jitted step.

The weights, the schedule, the tokens and the positions are arguments of the step, so that every method, factor and seed
shares one compilation per length.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PyTree

from rope_jax.attention.score_maps import ScoreMap
from rope_jax.experiment.layers import GroupMaps, Rule

Unembed = Callable[[Array], Array]
Schedules = Mapping[str, Any] | None


def token_scores(
    hidden: Float[Array, "*batch seq embed"], unembed: Unembed, targets: Int[Array, "*batch seq"], chunk: int
) -> tuple[Float[Array, "*batch seq"], Bool[Array, "*batch seq"]]:
    """Cross-entropy of every target and whether it is the likeliest token, `chunk` tokens at a time.

    loss_t = logsumexp(z_t) - z_t[target_t],   z_t = unembed(hidden_t) in float32

    Args:
      hidden: final hidden states, any float dtype.
      unembed: maps [tokens, embed] to logits [tokens, vocab].
      targets: token ids.
      chunk: tokens whose logits exist at once; the last chunk may be partial.

    Returns:
      (losses in nats, float32; hits), each of the shape of `targets`.

    Raises:
      ValueError: `chunk` is below 1.

    Example:
      >>> hidden, targets = jnp.eye(4)[None], jnp.zeros((1, 4), jnp.int32)
      >>> token_scores(hidden, lambda x: x, targets, chunk=3)[1].tolist()
      [[True, False, False, False]]
    """
    if chunk < 1:
        raise ValueError(f"`chunk` must be at least 1 token; got {chunk}. 4096 suits most vocabularies.")
    embed = hidden.shape[-1]
    flat, wanted = hidden.reshape(-1, embed), targets.reshape(-1)
    tokens = wanted.shape[0]
    chunk = max(1, min(chunk, tokens))
    chunks = -(-tokens // chunk)
    padding = chunks * chunk - tokens
    flat = jnp.pad(flat, ((0, padding), (0, 0))).reshape(chunks, chunk, embed)
    wanted = jnp.pad(wanted, (0, padding)).reshape(chunks, chunk)

    # Checkpointed so that a gradient recomputes the logits of a chunk rather than keeping those of all.
    @jax.checkpoint
    def scores(part: tuple[Array, Array]) -> tuple[Array, Array]:
        states, labels = part
        logits = unembed(states).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses, jnp.argmax(logits, axis=-1) == labels

    losses, hits = jax.lax.map(scores, (flat, wanted))
    return losses.reshape(-1)[:tokens].reshape(targets.shape), hits.reshape(-1)[:tokens].reshape(targets.shape)


def token_losses(
    hidden: Float[Array, "*batch seq embed"], unembed: Unembed, targets: Int[Array, "*batch seq"], chunk: int
) -> Float[Array, "*batch seq"]:
    """Cross-entropy of every target in nats, float32; never holds logits of more than `chunk` tokens.

    Arguments and equation as in `token_scores`.

    Example:
      >>> losses = token_losses(jnp.zeros((1, 2, 4)), lambda x: x, jnp.zeros((1, 2), jnp.int32), chunk=4096)
      >>> [round(loss, 4) for loss in losses[0].tolist()]
      [1.3863, 1.3863]
    """
    return token_scores(hidden, unembed, targets, chunk)[0]


def scoring_step(graphdef: nnx.GraphDef, chunk: int) -> Callable:
    """The jitted evaluation step: (params, schedules, tokens [rows, T + 1], positions [1, T]) -> (losses, hits).

    A score map is part of the program, the query scales of the layer groups [1, T] are data.
    """

    def step(
        params: PyTree,
        schedules: Schedules,
        tokens: Array,
        positions: Array,
        query_scale: Mapping[str, Array | None] | Array | None = None,
        score_map: ScoreMap | GroupMaps | None = None,
    ) -> tuple[Array, Array]:
        by_group = dict(score_map) if isinstance(score_map, tuple) else score_map
        model = nnx.merge(graphdef, params)
        hidden = model.hidden(
            tokens[:, :-1], schedules, positions=positions, query_scale=query_scale, score_map=by_group
        )
        return token_scores(hidden, model.unembed, tokens[:, 1:], chunk)

    return jax.jit(step, static_argnames="score_map")


def score(
    step: Callable,
    params: PyTree,
    schedules: Schedules,
    tokens: np.ndarray,
    rows: int,
    *,
    query_scale: Mapping[str, Rule | None] | Rule | None = None,
    score_map: ScoreMap | GroupMaps | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and hits of every target of every item, `rows` items per call of the step.

    Args:
      step: from `scoring_step`.
      params: the weights.
      schedules: what the decoder is called with.
      tokens: int32 [items, length + 1].
      rows: items per call; the last call is filled up with copies, so that one shape is compiled.
      query_scale: a rule from positions to a factor on queries, for all layers or by group.
      score_map: what far keys are rotated by instead, for all layers or by group.

    Returns:
      (losses float64, hits bool), each [items, length].
    """
    items, length = tokens.shape[0], tokens.shape[1] - 1
    positions = jnp.arange(length, dtype=jnp.int32)[None]

    def at_positions(rule: Rule | None) -> Array | None:
        return None if rule is None else rule(positions)

    if isinstance(query_scale, Mapping):
        scale: Any = {group: at_positions(rule) for group, rule in query_scale.items()}
    else:
        scale = at_positions(query_scale)
    outcomes = []
    for start in range(0, items, rows):
        part = tokens[start : start + rows]
        filled = np.concatenate([part, np.repeat(part[-1:], rows - len(part), axis=0)])
        outcomes.append(jax.device_get(step(params, schedules, filled, positions, scale, score_map=score_map)))
    losses = np.concatenate([losses for losses, _ in outcomes])[:items]
    hits = np.concatenate([hits for _, hits in outcomes])[:items]
    return losses.astype(np.float64), hits


def truncation_windows(tokens: np.ndarray, trained_length: int, stride: int) -> np.ndarray:
    """Every window of the trained length, moved by `stride`: [items, length + 1] -> [items * moves, trained + 1]."""
    moved = np.lib.stride_tricks.sliding_window_view(tokens, trained_length + 1, axis=1)[:, ::stride]
    return np.ascontiguousarray(moved).reshape(-1, trained_length + 1)


def merge_truncated(losses: np.ndarray, items: int, stride: int) -> np.ndarray:
    """The loss of every target from the window in which it is among the last `stride`: [items, length].

    So a target sees the last `trained - stride + 1` to `trained` tokens; the first window gives all its targets, each
    from the tokens before it.
    """
    moves = losses.reshape(items, -1, losses.shape[-1])
    return np.concatenate([moves[:, 0], moves[:, 1:, -stride:].reshape(items, -1)], axis=1)


def by_position(losses: np.ndarray, targets: int) -> list[float]:
    """Mean loss per bin of `targets` targets, from the start of the window."""
    return losses.reshape(losses.shape[0], -1, targets).mean(axis=(0, 2)).tolist()


def paired_gain(truncated: np.ndarray, full: np.ndarray) -> tuple[float, float]:
    """Mean over windows of (truncated - full) and the standard error of that mean.

    gain = mean_w(d_w),   stderr = std_w(d_w) / sqrt(windows),   d_w = truncated_w - full_w (std with windows - 1)

    Raises:
      ValueError: one window only, which has no spread.
    """
    if len(full) < 2:
        raise ValueError(f"`full` must hold at least 2 windows, for a standard error; got {len(full)}. Evaluate more.")
    difference = truncated - full
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def accuracy(
    hits: np.ndarray, weights: np.ndarray, depths: np.ndarray | None
) -> tuple[float, float, list[list[float]]]:
    """Accuracy of the answers.

    Args:
      hits: bool [items, length]; of teacher forcing, a token is right given the true ones before it, of generation,
        given those that were generated.
      weights: float [items, length], above 0 on answer tokens.
      depths: float [items], where the key lies, 0 first to 1 last; None for a task without.

    Returns:
      (share of answer tokens that are right; share of items with every answer token right, which is the same for both
      kinds of hits; [[depth, token share], ...] by rising depth).
    """
    answer = weights > 0
    right = hits & answer
    whole = float((right == answer).all(axis=1).mean())
    by_depth = []
    for depth in np.unique(depths) if depths is not None else ():
        at = depths == depth
        by_depth.append([float(depth), float(right[at].sum() / answer[at].sum())])
    return float(right.sum() / answer.sum()), whole, by_depth

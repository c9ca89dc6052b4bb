"""The loss of a batch that may be divided over devices: every shard works through its own tokens, a chunk at a time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.experiment.evaluate import Unembed, token_losses


def shards() -> tuple[int, int]:
    """(rows, tokens of a row): how many ways the mesh that `jax.set_mesh` names divides a batch."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return sizes.get("data", 1) * sizes.get("fsdp", 1), sizes.get("context", 1)


def divided_losses(
    hidden: Float[Array, "rows seq embed"],
    unembed: Unembed,
    targets: Int[Array, "rows seq"],
    chunk: int,
    divided: tuple[int, int] = (1, 1),
) -> Float[Array, "rows seq"]:
    """Cross-entropy of every target in nats, float32, with the logits of at most `chunk` tokens a device at once.

    `token_losses` walks over tokens in their order, which is over shards in their order: all but one device would wait.
    Here every chunk takes as many tokens from each shard.

    Args:
      hidden: final hidden states.
      unembed: maps [tokens, embed] to logits [tokens, vocab].
      targets: token ids.
      chunk: tokens of a device; each takes at least one of every row.
      divided: how many ways rows and tokens are divided.

    Example:
      >>> losses = divided_losses(jnp.zeros((2, 4, 8)), lambda x: x, jnp.zeros((2, 4), jnp.int32), 4, (2, 2))
      >>> round(float(losses[1, 3]), 4)
      2.0794
    """
    over_rows, over_tokens = divided
    if over_rows * over_tokens == 1:
        return token_losses(hidden, unembed, targets, chunk)
    rows, length = targets.shape
    own = length // over_tokens
    # The most tokens of a row that fit the chunk and fill whole chunks.
    taken = max(n for n in range(1, own + 1) if own % n == 0 and (n == 1 or n * -(-rows // over_rows) <= chunk))

    def dealt(x: Array) -> Array:
        """[rows, seq, ...] -> [chunks, shards, rows, taken, ...]; the shards stay whole."""
        parts = x.reshape(rows, over_tokens, own // taken, taken, *x.shape[2:])
        return jnp.moveaxis(parts, (2, 1), (0, 1))

    @jax.checkpoint
    def losses(part: tuple[Array, Array]) -> Array:
        states, labels = part
        return token_losses(states, unembed, labels, labels.size)

    together = jax.lax.map(losses, (dealt(hidden), dealt(targets)))
    return jnp.moveaxis(together, (0, 1), (2, 1)).reshape(rows, length)

"""The training step: one pure function for a laptop, a pod, a sweep and the compiler."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, PyTree

from rope_jax.experiment.training.frequencies import turned_by
from rope_jax.experiment.training.loss import divided_losses, shards

State = dict[str, Any]
Batch = Mapping[str, Any]
Metrics = dict[str, Array]
Step = Callable[[State, Any, Batch], tuple[State, Metrics]]


def build_step(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    *,
    loss_chunk: int,
    accumulate: int = 1,
    dots: bool = False,
    learnable: bool = False,
    order: str = "any",
) -> Step:
    """The step `(state, schedules, batch) -> (state, metrics)`, to be jitted with `donate_argnums=0`.

        loss = sum_t w_t loss_t / sum_t w_t,   over all targets t of the batch

    Args:
      graphdef: the decoder's structure, from `nnx.split`.
      optimizer: its updates are added to what is trained.
      loss_chunk: tokens of a device whose logits are held at once.
      accumulate: parts that the batch is taken in; every `accumulate`-th row makes a part, so that each has rows of
        every shard. The gradient is that of the whole batch, however targets are spread.
      dots: keep only the results of matrix products for the backward pass; for every layer, `DecoderConfig.remat`.
      learnable: train `state["frequencies"]`; otherwise they stay as they are.
      order: of the tokens, as `attend` takes it.

    The state is a dict: "params"; "opt", of the optimizer over the params, or, where there are frequencies, over
    {"params", "frequencies"}; and perhaps "frequencies", see `turned_by`. The batch is a dict of [rows, length] arrays
    "inputs", "targets", "weights", "positions" (or one row of them) and perhaps "segments". Metrics: "loss" in nats a
    target, before the update, and "grad_norm".
    """

    def summed(trained: PyTree, schedules: Any, batch: Batch, total: Array) -> Array:
        """The loss of one part, as its share of the whole."""
        params, learned = (trained["params"], trained["frequencies"]) if learnable else (trained, None)
        model = nnx.merge(graphdef, params)
        hidden = model.hidden(
            batch["inputs"],
            turned_by(schedules, learned),
            positions=batch["positions"],
            segments=batch.get("segments"),
            order=order,
        )
        losses = divided_losses(hidden, model.unembed, batch["targets"], loss_chunk, shards())
        return jnp.sum(losses * batch["weights"]) / total

    part_loss = (
        jax.checkpoint(summed, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable) if dots else summed
    )

    def step(state: State, schedules: Any, batch: Batch) -> tuple[State, Metrics]:
        whole = {name: part for name, part in state.items() if name != "opt"}
        bare = set(whole) == {"params"}
        trained = whole if learnable else whole["params"]
        batch = {name: jnp.asarray(value) for name, value in batch.items() if value is not None}
        total = jnp.sum(batch["weights"])

        def loss_and_gradient(part: Batch) -> tuple[Array, PyTree]:
            return jax.value_and_grad(part_loss)(trained, schedules, part, total)

        loss, gradients = _accumulated(loss_and_gradient, trained, batch, accumulate)
        metrics = {"loss": loss, "grad_norm": optax.tree.norm(gradients)}
        still = None if bare or learnable else jax.tree.map(jnp.zeros_like, whole["frequencies"])
        if still is not None:
            gradients = {"params": gradients, "frequencies": still}
        optimized = whole["params"] if bare else whole
        # optax mixes integer counts with floats, which the strict setting of the caller may forbid.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = optimizer.update(gradients, state["opt"], optimized)
            if still is not None:
                # Moments of an earlier stage would still move them.
                updates = {**updates, "frequencies": still}
            optimized = optax.apply_updates(optimized, updates)
        new = {"params": optimized} if bare else optimized
        return {**new, "opt": opt}, metrics

    return step


def _accumulated(
    loss_and_gradient: Callable[[Batch], tuple[Array, PyTree]], trained: PyTree, batch: Batch, accumulate: int
) -> tuple[Array, PyTree]:
    """Loss and gradient summed over the parts of a batch, one part at a time."""
    if accumulate == 1:
        return loss_and_gradient(batch)
    rows = batch["inputs"].shape[0]
    if rows % accumulate:
        raise ValueError(f"`accumulate` must divide the {rows} rows of a batch; got {accumulate}. Choose a divisor.")

    def parts(x: Array) -> Array:
        if x.shape[0] == 1 < rows:  # positions of all rows at once
            return jnp.broadcast_to(x, (accumulate, *x.shape))
        return jnp.moveaxis(x.reshape(rows // accumulate, accumulate, *x.shape[1:]), 1, 0)

    def add(sums: tuple[Array, PyTree], part: Batch) -> tuple[tuple[Array, PyTree], None]:
        return jax.tree.map(jnp.add, sums, loss_and_gradient(part)), None

    zero = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, trained))
    return jax.lax.scan(add, zero, jax.tree.map(parts, dict(batch)))[0]

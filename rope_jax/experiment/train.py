"""Training: one jitted step that takes the schedule as an argument, exact resumption from checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, PyTree

from rope_jax.experiment import checkpoint
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.evaluate import Schedules, token_losses
from rope_jax.experiment.tasks import Batch, Task


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stretch of training: its length and batch in tokens and rows, its learning rates, its first batch."""

    length: int
    batch: int
    steps: int
    learning_rate: float
    warmup: int
    first_batch: int = 0
    table: str = "train"
    """Where its learning rate is set."""

    @property
    def tokens(self) -> int:
        """Tokens that the stage trains on."""
        return self.length * self.batch * self.steps


class Trained(NamedTuple):
    """The weights after a stage and the loss of its last step, in nats per weighted target."""

    params: PyTree
    loss: float


def base_stage(config: ExperimentConfig) -> Stage:
    """Training at the original length."""
    train = config.train
    return Stage(
        length=train.length,
        batch=train.batch,
        steps=train.steps,
        learning_rate=train.learning_rate,
        warmup=train.warmup,
    )


def tuning_stage(config: ExperimentConfig) -> Stage:
    """Fine-tuning at a multiple of the original length, with the same tokens per step, on batches not yet seen."""
    tune = config.finetune
    return Stage(
        length=config.train.length * tune.multiple,
        batch=config.train.batch // tune.multiple,
        steps=tune.steps,
        learning_rate=tune.learning_rate,
        warmup=tune.warmup,
        first_batch=config.train.steps,
        table="finetune",
    )


def optimizer(config: ExperimentConfig, stage: Stage) -> optax.GradientTransformation:
    """AdamW behind a clip of the global norm; linear warmup, then a cosine down to `final_fraction` of the peak."""
    train = config.train
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=stage.learning_rate,
        warmup_steps=stage.warmup,
        decay_steps=stage.steps,
        end_value=stage.learning_rate * train.final_fraction,
    )
    adamw = optax.adamw(rate, b2=train.b2, weight_decay=train.weight_decay, mask=_decays)
    return optax.chain(optax.clip_by_global_norm(train.clip), adamw)


def _decays(params: PyTree) -> PyTree:
    """Weights that decay: matrices do, norm scales, biases and attention sinks do not."""
    spared = ("scale", "bias", "sinks")
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(f"'{name}'" in jax.tree_util.keystr(path) for name in spared), params
    )


class Trainer:
    """Runs a stage. Its step compiles once and serves every seed and every schedule.

    Example:
      trainer = Trainer(config, base_stage(config), graphdef)
      trained = trainer.run(params, schedules, task, folder)

    Args:
      config: the experiment.
      stage: what to run.
      graphdef: the decoder's structure, from `nnx.split`.
    """

    def __init__(self, config: ExperimentConfig, stage: Stage, graphdef: nnx.GraphDef) -> None:
        self.config = config
        self.stage = stage
        self._optimizer = optimizer(config, stage)
        self._step = _training_step(graphdef, self._optimizer, config.evaluate.loss_chunk)

    def run(
        self,
        params: PyTree,
        schedules: Schedules,
        task: Task,
        folder: Path,
        observe: Callable[[int, float | None], None] = lambda step, loss: None,
    ) -> Trained:
        """Train from `params`, or go on from the last checkpoint in `folder`; a finished stage only loads.

        Args:
          params: weights at the start; kept intact.
          schedules: what the decoder is called with.
          task: gives the batch of each step, so that resumed and unbroken runs see the same.
          folder: of the checkpoints.
          observe: called every `train.log_every` steps with (steps done, loss), and with (steps done, None) on loading.

        Raises:
          FloatingPointError: the loss of a step or the weights after it are not finite; the step is named and nothing
            more is saved.
        """
        # Copied because the step donates what it is given.
        state = {"model": jax.tree.map(jnp.copy, params), "opt": self._optimizer.init(params)}
        restored = checkpoint.restore_latest(folder, jax.eval_shape(lambda: state))
        done, loss = 0, float("nan")
        if restored is not None:
            done, state, meta = restored
            loss = meta["loss"]
        observe(done, None)
        positions = jnp.arange(self.stage.length, dtype=jnp.int32)[None]
        pending: list[jax.Array] = []
        for step in range(done, self.stage.steps):
            batch = task.train_batch(self.stage.first_batch + step, self.stage.length, self.stage.batch)
            state["model"], state["opt"], step_loss = self._step(*state.values(), schedules, batch, positions)
            pending.append(step_loss)
            now = step + 1
            saves = now == self.stage.steps or now % self.config.train.checkpoint_every == 0
            if saves or now % self.config.train.log_every == 0:
                loss = _checked(pending, now, self.stage.table)
                pending = []
                observe(now, loss)
            if saves:
                # The loss of a step is that of the weights before it: it says nothing about the last update.
                if not _all_finite(state):
                    raise _diverged("weights", "NaN or infinity", f"after step {now}", self.stage.table)
                checkpoint.save(folder, now, state, {"loss": loss})
        return Trained(state["model"], loss)


def _training_step(graphdef: nnx.GraphDef, transformation: optax.GradientTransformation, chunk: int) -> Callable:
    """The jitted step: (params, opt, schedules, batch, positions) -> (params, opt, loss)."""

    def batch_loss(params: PyTree, schedules: Schedules, batch: Batch, positions: Array) -> Array:
        tokens, weights = map(jnp.asarray, batch)
        model = nnx.merge(graphdef, params)
        hidden = model.hidden(tokens[:, :-1], schedules, positions=positions)
        losses = token_losses(hidden, model.unembed, tokens[:, 1:], chunk)
        return jnp.sum(losses * weights) / jnp.sum(weights)

    def step(
        params: PyTree, opt: optax.OptState, schedules: Schedules, batch: Batch, positions: Array
    ) -> tuple[PyTree, optax.OptState, Array]:
        loss, gradients = jax.value_and_grad(batch_loss)(params, schedules, batch, positions)
        # optax mixes integer counts with floats, which the strict setting of the caller may forbid.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = transformation.update(gradients, opt, params)
            return optax.apply_updates(params, updates), opt, loss

    return jax.jit(step, donate_argnums=(0, 1))


@jax.jit
def _all_finite(state: PyTree) -> Array:
    """Whether every float of the weights and of the optimizer's moments is finite."""
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _diverged(what: str, got: object, when: str, table: str) -> FloatingPointError:
    return FloatingPointError(
        f"`{what}` must stay finite; got {got} {when}. "
        f"Lower {table}.learning_rate or train.clip, or lengthen {table}.warmup."
    )


def _checked(pending: list[jax.Array], last_step: int, table: str) -> float:
    """The last of the losses since the last check; waits for the device only here, so steps queue up between checks."""
    losses = np.asarray(jax.device_get(pending))
    broken = np.flatnonzero(~np.isfinite(losses))
    if broken.size:
        step = last_step - len(losses) + 1 + int(broken[0])
        raise _diverged("loss", losses[broken[0]], f"at step {step}", table)
    return float(losses[-1])

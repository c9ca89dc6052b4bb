"""Training: one jitted step that takes the schedule as an argument, exact resumption from checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import PyTree

from rope_jax.experiment import checkpoint
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.evaluate import Schedules
from rope_jax.experiment.tasks import Batch, Task
from rope_jax.experiment.training.guard import check_losses, check_state
from rope_jax.experiment.training.optimizer import adamw
from rope_jax.experiment.training.settings import OptimizerConfig
from rope_jax.experiment.training.step import build_step


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
    return adamw(rate, OptimizerConfig(weight_decay=train.weight_decay, b2=train.b2, clip=train.clip))


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
        step = build_step(graphdef, self._optimizer, loss_chunk=config.evaluate.loss_chunk)
        self._step = jax.jit(step, donate_argnums=0)
        self._cure = f"Lower {stage.table}.learning_rate or train.clip, or lengthen {stage.table}.warmup."

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
            whole, metrics = self._step(
                {"params": state["model"], "opt": state["opt"]}, schedules, _step_batch(batch, positions)
            )
            state = {"model": whole["params"], "opt": whole["opt"]}
            pending.append(metrics["loss"])
            now = step + 1
            saves = now == self.stage.steps or now % self.config.train.checkpoint_every == 0
            if saves or now % self.config.train.log_every == 0:
                loss = check_losses(pending, now, self._cure)
                pending = []
                observe(now, loss)
            if saves:
                check_state(state, now, self._cure)
                checkpoint.save(folder, now, state, {"loss": loss})
        return Trained(state["model"], loss)


def _step_batch(batch: Batch, positions: jax.Array) -> dict[str, Any]:
    """A batch as the step takes it."""
    tokens, weights = batch
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights, "positions": positions}

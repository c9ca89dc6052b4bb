"""How the number of one cell comes about: weights, questions, one compiled step, and the fields of its row."""

import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from rope_jax.experiment import evaluate
from rope_jax.experiment.config import ExperimentConfig, config_hash
from rope_jax.experiment.model import group_schedules, make_decoder, plain_schedule
from rope_jax.experiment.plan import PLAIN, Cell
from rope_jax.experiment.progress import Pace, Reporter
from rope_jax.experiment.tasks import Questions, Task, make_task
from rope_jax.experiment.train import Trained, Trainer, base_stage, tuning_stage

Row = Mapping[str, Any]


class MissingResult(Exception):
    """A cell needs what a failed cell was to give; it waits for the next start."""


class Laboratory:
    """Measures cells of one experiment. Holds the task and the weights of the cells that come one after the other.

    Args:
      config: the experiment.
      folder: where the checkpoints lie.
      reporter: told about the steps of training.

    Raises:
      ValueError: the text is missing, or too short for a batch of a stage or for the windows.
    """

    def __init__(self, config: ExperimentConfig, folder: Path, reporter: Reporter) -> None:
        self.config = config
        self.folder = folder
        self._reporter = reporter
        self._tasks: dict[int, Task] = {}
        self._weights: dict[tuple, Trained] = {}
        self._without_weights: set[tuple] = set()
        task = self._task(config.seeds[0])
        self.corpus = task.corpus
        """Digest of the text, None for a task without."""
        outline = nnx.eval_shape(lambda: make_decoder(config, vocab=task.vocab, seed=0))
        self._graphdef, shapes = nnx.split(outline)
        self._parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        self._step = evaluate.scoring_step(self._graphdef, config.evaluate.loss_chunk)
        self._trainers = {"base": Trainer(config, base_stage(config), self._graphdef)}
        if config.finetune.steps:
            self._trainers["tuned"] = Trainer(config, tuning_stage(config), self._graphdef)
        # Tried here, so that a text with too few windows for a batch is refused before anything is written.
        for trainer in self._trainers.values():
            task.train_batch(trainer.stage.first_batch, trainer.stage.length, trainer.stage.batch)

    def measure(self, cell: Cell, rows: Sequence[Row]) -> dict[str, Any]:
        """The value of a cell and what goes with it in its row.

        Args:
          cell: from the plan.
          rows: the finished rows so far; a loss is paired with its truncation baseline there.

        Raises:
          MissingResult: the baseline or the weights of the cell failed.
        """
        if cell.metric == "training":
            return self._training(cell)
        if cell.metric == "truncated_loss":
            return self._truncated(cell, rows)
        if cell.metric == "loss":
            return self._loss(cell, rows)
        return self._passkey(cell)

    def _training(self, cell: Cell) -> dict[str, Any]:
        trained = self._trained(cell)
        stage, base = self._trainers[cell.phase].stage, self._trainers["base"].stage
        return {
            "value": trained.loss,
            "count": stage.length * stage.batch,
            "tokens": stage.tokens + (base.tokens if cell.phase == "tuned" else 0),
            "steps": stage.steps,
            "parameters": self._parameters,
        }

    def _truncated(self, cell: Cell, rows: Sequence[Row]) -> dict[str, Any]:
        """Every target from its last trained-length tokens; the tail of every window goes into the row, for pairing."""
        trained, stride = self.config.train.length, self.config.evaluate.truncation_stride
        tokens = self._questions(cell).tokens
        schedules = cell.schedules(self.config, length=trained)
        windows = evaluate.truncation_windows(tokens, trained, stride)
        losses = evaluate.merge_truncated(self._scores(cell, schedules, windows)[0], len(tokens), stride)
        # A window of the trained length has nothing to cut off: its baseline is the window itself.
        whole, _ = self._scores(cell, schedules, tokens[:, -trained - 1 :])
        tails = losses[:, -trained // 4 :].mean(axis=1)
        own = {
            "value": float(tails.mean()),
            "count": len(tokens) * (trained // 4),
            "by_position": evaluate.by_position(losses, trained // 4),
            "tails": tails.tolist(),
            "tails_at_trained_length": whole[:, -trained // 4 :].mean(axis=1).tolist(),
        }
        # Weights that give no number have no baseline: the plain one in its place would hide that.
        if cell.phase == "base" or not math.isfinite(own["value"]):
            return own
        plain = self._baseline(cell.seed, None, None, rows)
        # The better of the two, so that the gain of tuned weights is never flattered.
        better: Row = own if own["value"] < plain["value"] else plain
        choice = {"chosen": "tuned" if better is own else "plain", "plain": plain["value"], "tuned": own["value"]}
        return {name: better[name] for name in own} | choice

    def _loss(self, cell: Cell, rows: Sequence[Row]) -> dict[str, Any]:
        trained = self.config.train.length
        baseline = self._baseline(cell.seed, cell.tuned_method, cell.tuned_factor, rows)
        truncated = np.asarray(baseline["tails_at_trained_length" if cell.length == trained else "tails"])
        losses, _ = self._scores(cell, cell.schedules(self.config), self._questions(cell).tokens)
        tails = losses[:, -trained // 4 :].mean(axis=1)
        gain, stderr = evaluate.paired_gain(truncated, tails)
        return self._frequencies(cell) | {
            "value": float(tails.mean()),
            "count": len(tails) * (trained // 4),
            "mean": float(losses.mean()),
            "by_position": evaluate.by_position(losses, trained // 4),
            "truncated": float(truncated.mean()),
            "context_gain": gain,
            "context_gain_stderr": stderr,
        }

    def _passkey(self, cell: Cell) -> dict[str, Any]:
        questions = self._questions(cell)
        _, hits = self._scores(cell, cell.schedules(self.config), questions.tokens)
        share, whole, by_depth = evaluate.accuracy(hits, questions.weights, questions.depths)
        count = int((questions.weights > 0).sum())
        return self._frequencies(cell) | {"value": share, "count": count, "whole_answers": whole, "by_depth": by_depth}

    def _frequencies(self, cell: Cell) -> dict[str, Any]:
        """What the cell was rotated with."""
        if self.config.model.positional != "rope":
            return {"inv_freq": [], "attention_scale": 1.0}
        schedule = cell.transform(self.config)(plain_schedule(self.config.model), length=cell.length)
        return {"inv_freq": schedule.float64().tolist(), "attention_scale": float(schedule.attention_scale)}

    def _baseline(self, seed: int, tuned_method: str | None, tuned_factor: float | None, rows: Sequence[Row]) -> Row:
        """The finished truncation baseline of the same weights."""
        wanted = ("truncated_loss", seed, self.config.longest, tuned_method, tuned_factor)
        for row in rows:
            found = (row["metric"], row["seed"], row["length"], row.get("tuned_method"), row.get("tuned_factor"))
            if found == wanted:
                return row
        raise MissingResult

    def _scores(self, cell: Cell, schedules: Any, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses and hits; a shorter length gets more rows a call, so that every call has about as many tokens."""
        rows = self.config.evaluate.batch * self.config.longest // (tokens.shape[1] - 1)
        return evaluate.score(self._step, self._trained(cell).params, schedules, tokens, rows)

    def _questions(self, cell: Cell) -> Questions:
        return self._task(cell.seed).questions(cell.length)

    def _task(self, seed: int) -> Task:
        """The task of a seed; one at a time, since the corpus lies in memory."""
        if seed not in self._tasks:
            task = make_task(self.config, seed, self.config.longest)
            if self._tasks and task.corpus != self.corpus:
                raise RuntimeError(
                    f"`data.source` must hold the same text for the whole run; {self.config.data.source!r} has changed "
                    "since it began. Restore the text, or start again in another output folder."
                )
            self._tasks = {seed: task}
        return self._tasks[seed]

    def _trained(self, cell: Cell) -> Trained:
        """The weights of a cell: held since the cell before, loaded, or trained on from the last checkpoint."""
        if cell.weights in self._without_weights:
            raise MissingResult
        if cell.weights not in self._weights:
            try:
                trained = self._train(cell)
            except Exception:
                self._without_weights.add(cell.weights)
                raise
            base = {key: held for key, held in self._weights.items() if key == (cell.seed, None, None)}
            self._weights = base | {cell.weights: trained}
        return self._weights[cell.weights]

    def _train(self, cell: Cell) -> Trained:
        """Train the weights of a cell, or what is left of their training."""
        tuned = cell.tuned_method is not None
        trainer = self._trainers["tuned" if tuned else "base"]
        stage, task = trainer.stage, self._task(cell.seed)
        if tuned:
            transform = cell.calls.transform(factor=cell.tuned_factor or 1.0, original_length=self.config.train.length)
            params = self._trained(dataclasses.replace(cell, tuned_method=None, tuned_factor=None)).params
        else:
            transform = PLAIN.transform(factor=1.0, original_length=self.config.train.length)
            _, params = nnx.split(make_decoder(self.config, vocab=task.vocab, seed=cell.seed))
        name = f"fine-tuning {cell.label}" if tuned else "training"
        pace = Pace(
            self._reporter,
            f"{name}, seed {cell.seed}",
            tokens_per_step=stage.length * stage.batch,
            steps=stage.steps,
            counted=cell.metric == "training",
        )
        schedules = group_schedules(self.config, transform, length=stage.length)
        return trainer.run(
            params, schedules, task, checkpoint_folder(self.folder, self.config, cell, self.corpus), pace
        )


def checkpoint_folder(folder: Path, config: ExperimentConfig, cell: Cell, corpus: str | None) -> Path:
    """Where the checkpoints of a cell's weights lie: `checkpoints/<config hash>-<text's digest>/base-seed0`.

    The digests keep a run from going on with weights that another config or another text left behind.
    """
    name = f"base-seed{cell.seed}"
    if cell.tuned_method is not None:
        written = re.sub(r"[^A-Za-z0-9_.]+", "-", cell.tuned_method).strip("-")
        digest = hashlib.sha256(cell.tuned_method.encode()).hexdigest()[:6]
        name = f"tuned-{written[:60]}-{digest}-x{cell.tuned_factor:g}-seed{cell.seed}"
    origin = "-".join(digest[:12] for digest in (config_hash(config), corpus) if digest)
    return folder / "checkpoints" / origin / name

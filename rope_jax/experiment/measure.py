"""How the number of one cell comes about: weights, questions, one compiled step, and the fields of its row."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from rope_jax.experiment import evaluate
from rope_jax.experiment.answers import generated_hits
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.data import opened
from rope_jax.experiment.export import FOLDER, export, exported_rope
from rope_jax.experiment.model import Schedules, Subject
from rope_jax.experiment.plan import Cell
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.published import Checkpoint, subject_of
from rope_jax.experiment.tasks import Questions, Task, make_task
from rope_jax.experiment.train import Trained
from rope_jax.experiment.weights import MissingResult, Weights, weights_name

Row = Mapping[str, Any]


class Laboratory:
    """Measures cells of one experiment. Holds the task and the weights of the cells that come one after the other.

    Args:
      config: the experiment.
      folder: where the checkpoints lie.
      reporter: told about the steps of training.
      subject: the model; made of the config when left out.

    Raises:
      ValueError: the text is missing, or too short for a batch of a stage or for the windows; a length too short for
        the passkey's words.
    """

    def __init__(
        self, config: ExperimentConfig, folder: Path, reporter: Reporter, subject: Subject | None = None
    ) -> None:
        self.config = config
        self.folder = folder
        self.subject = subject or subject_of(config)
        self._reporter = reporter
        self._published = Checkpoint(config, self.subject) if config.starts_trained else None
        self._tasks: dict[int, Task] = {}
        task = self._task(config.seeds[0])
        self.notes = task.notes
        """What a reader of the numbers must know of the text."""
        self.corpus = task.corpus
        """Digest of the text, None for a task without."""
        self._weights = Weights(config, folder, self.subject, task.vocab, self._published)
        self._step = evaluate.scoring_step(self._weights.graphdef, config.evaluate.loss_chunk)
        # Tried here, so that a text with too few windows, or a length too short, is refused before anything is written.
        for stage in self._weights.stages.values():
            task.train_batch(stage.first_batch, stage.length, stage.batch)
        task.questions(min(config.sweep.lengths(config.train.length)))

    @property
    def origin(self) -> dict[str, Any] | None:
        """The checkpoint that the weights start from, as rows record it; None for weights that are trained here."""
        if self._published is None:
            return None
        return {
            "name": self.subject.name,
            "digest": self._published.digest,
            "parameters": self._weights.parameters,
            "trained_length": self.subject.own_length,
            "bos": self._published.encoding.bos,
        }

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
        trained, stages = self._trained(cell), self._weights.stages
        stage = stages[cell.phase]
        return {
            "value": trained.loss,
            "count": stage.length * stage.batch,
            # Those before a fine-tune count too, where they are known.
            "tokens": sum(stages[phase].tokens for phase in {"base", cell.phase} & stages.keys()),
            "steps": stage.steps,
            "parameters": self._weights.parameters,
        }

    def _truncated(self, cell: Cell, rows: Sequence[Row]) -> dict[str, Any]:
        """Every target from its last trained-length tokens; the tail of every window goes into the row, for pairing."""
        trained, stride = self.config.train.length, self.config.evaluate.truncation_stride
        task, tokens = self._task(cell.seed), self._questions(cell).tokens
        schedules = cell.schedules(self.config, self.subject, length=trained)
        windows = opened(evaluate.truncation_windows(tokens, trained, stride), task.bos)
        losses = evaluate.merge_truncated(self._scores(cell, schedules, windows)[0], len(tokens), stride)
        tails = losses[:, -trained // 4 :].mean(axis=1)
        own = {
            "value": float(tails.mean()),
            "count": len(tokens) * (trained // 4),
            "by_position": evaluate.by_position(losses, trained // 4),
            "tails": tails.tolist(),
            "tails_within": {str(length): self._within(cell, length) for length in self._uncut()},
        }
        # Weights that give no number have no baseline: the plain one in its place would hide that.
        if cell.phase == "base" or not math.isfinite(own["value"]):
            return own
        plain = self._baseline(cell.seed, None, None, rows)
        # The better of the two, so that the gain of tuned weights is never flattered.
        better: Row = own if own["value"] < plain["value"] else plain
        choice = {"chosen": "tuned" if better is own else "plain", "plain": plain["value"], "tuned": own["value"]}
        return {name: better[name] for name in own} | choice

    def _uncut(self) -> list[int]:
        """The lengths that truncation leaves whole: their baseline is the window itself."""
        trained = self.config.train.length
        return [length for length in self.config.sweep.lengths(trained) if length <= trained]

    def _within(self, cell: Cell, length: int) -> list[float]:
        """The tail of every window of a length that truncation leaves whole."""
        tokens = self._task(cell.seed).questions(length).tokens
        losses, _ = self._scores(cell, cell.schedules(self.config, self.subject, length=length), tokens)
        return losses[:, -self.config.train.length // 4 :].mean(axis=1).tolist()

    def _loss(self, cell: Cell, rows: Sequence[Row]) -> dict[str, Any]:
        trained = self.config.train.length
        baseline = self._baseline(cell.seed, cell.tuned_method, cell.tuned_factor, rows)
        truncated = np.asarray(
            baseline["tails"] if cell.length > trained else baseline["tails_within"][str(cell.length)]
        )
        schedules = cell.schedules(self.config, self.subject)
        losses, _ = self._scores(cell, schedules, self._questions(cell).tokens)
        tails = losses[:, -trained // 4 :].mean(axis=1)
        gain, stderr = evaluate.paired_gain(truncated, tails)
        return self._rotation(cell, schedules) | {
            "value": float(tails.mean()),
            "count": len(tails) * (trained // 4),
            "mean": float(losses.mean()),
            "by_position": evaluate.by_position(losses, trained // 4),
            "truncated": float(truncated.mean()),
            "context_gain": gain,
            "context_gain_stderr": stderr,
            "window_gains": (truncated - tails).tolist(),
        }

    def _passkey(self, cell: Cell) -> dict[str, Any]:
        questions, schedules = self._questions(cell), cell.schedules(self.config, self.subject)
        generated = self.config.evaluate.generate
        hits = self._answers(cell, schedules) if generated else self._scores(cell, schedules, questions.tokens)[1]
        share, whole, by_depth = evaluate.accuracy(hits, questions.weights, questions.depths)
        return self._rotation(cell, schedules) | {
            "value": share,
            "count": int((questions.weights > 0).sum()),
            "keys": len(questions.tokens),
            "chance": self._task(cell.seed).chance(questions),
            "whole_answers": whole,
            "answers": "generated" if generated else "teacher forced",
            "by_depth": by_depth,
        }

    def _rotation(self, cell: Cell, schedules: Schedules) -> dict[str, Any]:
        """What the cell was rotated with, and what else it did to scores."""
        extras = {"score_map": cell.score_map(self.config), "query_scale": cell.query_scale(self.config)}
        named: dict[str, Any] = {name: repr(extra) for name, extra in extras.items() if extra is not None}
        layers = cell.calls.layers
        if layers != "auto":
            named["layers"] = {"chosen": layers, "frequencies": self.subject.edited(layers)}
        schedule = self.subject.recorded(schedules, layers)
        if schedule is None:
            return {"inv_freq": [], "attention_scale": 1.0, **named}
        frequencies = {"inv_freq": schedule.float64().tolist(), "attention_scale": float(schedule.attention_scale)}
        return frequencies | named

    def _baseline(self, seed: int, tuned_method: str | None, tuned_factor: float | None, rows: Sequence[Row]) -> Row:
        """The finished truncation baseline of the same weights."""
        wanted = ("truncated_loss", seed, self.config.longest, tuned_method, tuned_factor)
        for row in rows:
            found = (row["metric"], row["seed"], row["length"], row.get("tuned_method"), row.get("tuned_factor"))
            if found == wanted:
                return row
        raise MissingResult

    def _scores(self, cell: Cell, schedules: Any, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses and hits of every target."""
        params, rows = self._trained(cell).params, self._rows(tokens.shape[1] - 1)
        return evaluate.score(self._step, params, schedules, tokens, rows, **cell.scoring(self.config, self.subject))

    def _answers(self, cell: Cell, schedules: Any) -> np.ndarray:
        """Hits of generated answers."""
        decoder = nnx.merge(self._weights.graphdef, self._trained(cell).params)
        questions, scoring = self._questions(cell), cell.scoring(self.config, self.subject)
        return generated_hits(decoder, schedules, questions, self._rows(cell.length), **scoring)

    def _rows(self, length: int) -> int:
        """A shorter length gets more rows a call, so that every call has about as many tokens."""
        return self.config.evaluate.batch * self.config.longest // length

    def _questions(self, cell: Cell) -> Questions:
        return self._task(cell.seed).questions(cell.length)

    def _task(self, seed: int) -> Task:
        """The task of a seed; one at a time, since the corpus lies in memory."""
        if seed not in self._tasks:
            encoding = self._published.encoding if self._published else None
            task = make_task(self.config, seed, self.config.longest, encoding)
            if self._tasks and task.corpus != self.corpus:
                raise RuntimeError(
                    f"`data.source` must hold the same text for the whole run; {self.config.data.source!r} has changed "
                    "since it began. Restore the text, or start again in another output folder."
                )
            self._tasks = {seed: task}
        return self._tasks[seed]

    def _trained(self, cell: Cell) -> Trained:
        return self._weights.of(cell, self._task(cell.seed), self._reporter)

    def export(self, cell: Cell) -> Path:
        """The folder of a cell's tuned weights in the form of the checkpoint; written unless it is there.

        Raises:
          MissingResult: the weights failed.
        """
        published = self._published
        assert published is not None  # the rules allow no export without

        def write(draft: Path) -> None:
            rope = exported_rope(self.subject, cell.tuned_transform(self.config), cell.calls.layers)
            reached = self.config.train.length * self.config.finetune.multiple
            published.save(self._trained(cell).params, rope, draft, reached=reached)

        return export(write, self.folder / FOLDER / weights_name(cell))

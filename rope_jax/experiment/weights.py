"""The weights of a cell: read from a checkpoint, trained, or held since the cell before."""

import dataclasses
import hashlib
import re
from pathlib import Path

import jax
from flax import nnx
from jaxtyping import PyTree

from rope_jax import nn
from rope_jax.experiment.config import ExperimentConfig, config_hash
from rope_jax.experiment.model import Subject, decoder_config, make_decoder
from rope_jax.experiment.plan import PLAIN, Cell
from rope_jax.experiment.progress import Pace, Reporter
from rope_jax.experiment.published import Checkpoint
from rope_jax.experiment.tasks import Task
from rope_jax.experiment.train import Stage, Trained, Trainer, base_stage, tuning_stage

Which = tuple[int, str | None, float | None]


class MissingResult(Exception):
    """A cell needs what a failed cell was to give; it waits for the next start."""


class Weights:
    """Gives the weights of one cell after the other; those before any fine-tuning stay in memory beside the last ones.

    Args:
      config: the experiment.
      folder: of the run, which the checkpoints lie in.
      subject: the model.
      vocab: token ids of the task.
      published: the checkpoint that they start from; None for weights that are trained here.
    """

    def __init__(
        self, config: ExperimentConfig, folder: Path, subject: Subject, vocab: int, published: Checkpoint | None
    ) -> None:
        self.config = config
        self.folder = folder
        self.subject = subject
        self.published = published
        shape = decoder_config(config, subject, vocab=vocab)
        self.graphdef, shapes = nnx.split(nnx.eval_shape(lambda: nn.Decoder(shape, rngs=nnx.Rngs(0))))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        self._held: dict[Which, Trained] = {}
        self._failed: set[Which] = set()
        stages = {"base": base_stage(config)} if published is None else {}
        stages |= {"tuned": tuning_stage(config)} if config.finetune.steps else {}
        self._trainers = {phase: Trainer(config, stage, self.graphdef) for phase, stage in stages.items()}

    @property
    def stages(self) -> dict[str, Stage]:
        """What is trained, by phase."""
        return {phase: trainer.stage for phase, trainer in self._trainers.items()}

    def of(self, cell: Cell, task: Task, reporter: Reporter) -> Trained:
        """The weights of a cell: held, loaded, or trained on from their last checkpoint.

        Raises:
          MissingResult: they failed before.
          FloatingPointError: a training loss, or the weights after it, are not finite.
        """
        if cell.weights in self._failed:
            raise MissingResult
        if cell.weights not in self._held:
            try:
                trained = self._train(cell, task, reporter)
            except Exception:
                self._failed.add(cell.weights)
                raise
            base = {which: held for which, held in self._held.items() if which == (cell.seed, None, None)}
            self._held = base | {cell.weights: trained}
        return self._held[cell.weights]

    def _train(self, cell: Cell, task: Task, reporter: Reporter) -> Trained:
        """Read the weights of a cell, train them, or do what is left of their training."""
        if cell.tuned_method is not None:
            base = dataclasses.replace(cell, phase="base", tuned_method=None, tuned_factor=None)
            return self._run("tuned", cell, self.of(base, task, reporter).params, task, reporter)
        if self.published is not None:
            return Trained(self.published.params, float("nan"))
        _, params = nnx.split(make_decoder(self.config, vocab=task.vocab, seed=cell.seed))
        return self._run("base", cell, params, task, reporter)

    def _run(self, phase: str, cell: Cell, params: PyTree, task: Task, reporter: Reporter) -> Trained:
        """Run the stage of a phase from the weights given."""
        trainer, config = self._trainers[phase], self.config
        stage, tuned = trainer.stage, phase == "tuned"
        plain = PLAIN.transform(factor=1.0, original_length=config.train.length)
        pace = Pace(
            reporter,
            f"{f'fine-tuning {cell.label}' if tuned else 'training'}, seed {cell.seed}",
            tokens_per_step=stage.length * stage.batch,
            steps=stage.steps,
            counted=cell.metric == "training",
        )
        transform = cell.tuned_transform(config) if tuned else plain
        schedules = self.subject.schedules(transform, length=stage.length, layers=cell.calls.layers)
        origin = (task.corpus, self.published.digest if self.published else None)
        return trainer.run(params, schedules, task, checkpoint_folder(self.folder, config, cell, origin), pace)


def checkpoint_folder(folder: Path, config: ExperimentConfig, cell: Cell, origin: tuple[str | None, ...]) -> Path:
    """Where the checkpoints of a cell's weights lie: `checkpoints/<config hash>-<text's digest>/base-seed0`.

    The digests keep a run from going on with weights that another config, text or checkpoint left behind.
    """
    digests = "-".join(digest[:12] for digest in (config_hash(config), *origin) if digest)
    return folder / "checkpoints" / digests / weights_name(cell)


def weights_name(cell: Cell) -> str:
    """A name for the weights of a cell that no others have: `tuned-YaRN-beta_fast-4.0-1f0a3c-x4-seed0`."""
    if cell.tuned_method is None:
        return f"base-seed{cell.seed}"
    written = re.sub(r"[^A-Za-z0-9_.]+", "-", cell.tuned_method).strip("-")
    digest = hashlib.sha256(cell.tuned_method.encode()).hexdigest()[:6]
    return f"tuned-{written[:60]}-{digest}-x{cell.tuned_factor:g}-seed{cell.seed}"

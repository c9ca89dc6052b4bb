"""A training run in its folder: everything that can be wrong with it is found when its session is opened."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from rope_jax import nn
from rope_jax.experiment.checkpoint import Checkpoints, check_space
from rope_jax.experiment.training.config import bearing
from rope_jax.experiment.training.evaluation import HeldOut
from rope_jax.experiment.training.export import FOLDER as EXPORT
from rope_jax.experiment.training.folder import locked, make_folder
from rope_jax.experiment.training.guard import check_numbers
from rope_jax.experiment.training.metrics import Metrics
from rope_jax.experiment.training.record import run_header, stage_entry, write_record
from rope_jax.experiment.training.resuming import check_same
from rope_jax.experiment.training.rules import check_mesh
from rope_jax.experiment.training.stage_step import stage_step
from rope_jax.experiment.training.stages import stage_schedules
from rope_jax.experiment.training.start import Run
from rope_jax.experiment.training.state import abstract_batch, abstract_state, decoder_shape, init_state
from rope_jax.experiment.training.step import State
from rope_jax.experiment.training.text import read_text
from rope_jax.experiment.training.transitions import evaluated_schedules
from rope_jax.parallel import make_mesh


@dataclass(frozen=True)
class Point:
    """Where a run stands: `step` steps done, in stage number `stage`, whose feed stands at `feed` (None: its start)."""

    step: int = 0
    stage: int = 0
    feed: dict[str, Any] | None = None


class Session:
    """A run in progress: its model, text and mesh, its checkpoints and what it says.

    Example:
      with Session(load_run("configs/train/quickstart.toml")) as session:
          train(session)

    Args:
      run: from `load_run` or `open_run`; its folder is `output/name`.
      devices: those to use; None: all of this program.

    Raises:
      ValueError, TypeError, OSError: something in the config cannot be done, the disk is too small, or the folder
        holds a damaged checkpoint or one of other settings.
      RuntimeError: another process trains in the folder.
    """

    def __init__(self, run: Run, devices: Sequence[Any] | None = None) -> None:
        self.run, self.config = run, run.config
        config = run.config
        self.mesh: Mesh = make_mesh(config.mesh, devices)
        check_mesh(run, self.mesh)
        self.text = read_text(run)
        self.vocab = _vocab(run, self.text.vocabulary.size)
        self.graphdef, self.abstract = abstract_state(run, self.mesh, vocab=self.vocab)
        self.origin = None if run.checkpoint is None else run.checkpoint.digest
        self.shape = decoder_shape(run, vocab=self.vocab)
        whole = replace(self.shape, sharding=None)
        self.undivided, _ = nnx.split(nnx.eval_shape(lambda: nn.Decoder(whole, rngs=nnx.Rngs(0))))
        self.folder = Path(config.output) / config.name
        saves = config.checkpoint
        kept = saves.keep + (config.steps // saves.keep_every if saves.keep_every else 0)
        check_space(self.folder / "checkpoints", self.abstract, kept)
        self.held_out = HeldOut(run, self.text.documents, self.graphdef, self.mesh, self.text.vocabulary.bos)
        self._check_steps()
        # Last, since they make the folder.
        make_folder(self.folder)
        self._lock = locked(self.folder)
        try:
            self.checkpoints = Checkpoints(self.folder / "checkpoints", keep=saves.keep, keep_every=saves.keep_every)
            self._meta = self._resumable()
            self._check_export()
        except BaseException:
            self._unlock()
            raise
        self.metrics = Metrics(self.folder, config, writes=jax.process_index() == 0)
        self.seen: dict[str, dict[str, Any]] = dict(self._meta["seen"]) if self._meta else {}
        self.signal: int | None = None
        self.stepping = False
        """Whether steps have been done that no checkpoint may hold yet."""

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception: object) -> None:
        self.checkpoints.__exit__(*exception)
        self.metrics.close()
        self._unlock()

    def _check_steps(self) -> None:
        """Finds out what attention refuses that was asked for by name, without computing anything."""
        compute = self.config.compute
        if compute.backend == "auto" and compute.context_form == "all_gather":
            return
        for index, stage in enumerate(self.config.stages):
            schedules = stage_schedules(self.run, index)
            for length in (stage.length, *(stage.data or self.config.data).buckets) if stage.steps else ():
                batch = abstract_batch(self.config.tokens_per_batch // length, length, self.mesh)
                with jax.set_mesh(self.mesh):
                    step = stage_step(self.config, index, self.graphdef, self.abstract)
                    jax.eval_shape(step, self.abstract, schedules, batch)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract["params"]))

    @property
    def saved(self) -> int:
        """The step that the run would go on from."""
        return self.checkpoints.latest or 0

    def save(self, state: State, point: Point, *, wait: bool = False) -> None:
        """A checkpoint of a state that stands at a point."""
        meta = {
            "config": bearing(self.config),
            "checkpoint": self.origin,
            "text": self.text.digest,
            "vocab": self.vocab,
            "stage": point.stage,
            "feed": point.feed,
            "seen": self.seen,
        }
        items = {"model": state["params"], "opt": state["opt"]}
        items |= {"frequencies": state["frequencies"]} if "frequencies" in state else {}
        self.checkpoints.save(point.step, items, meta, wait=wait)

    def evaluate(self, index: int, state: State, step: int) -> dict[str, dict[str, float]]:
        """The held-out losses under the schedules of a stage: length -> loss and tail."""
        lengths = sorted({*self.run.lengths, self.config.stages[index].length})
        losses = {}
        for length in lengths:
            schedules = evaluated_schedules(self.run, index, state, length)
            losses[str(length)] = self.held_out.losses(state["params"], schedules, length)
        check_numbers(losses, "held-out loss", step, self.cure())
        by_kind = {kind: {length: found[kind] for length, found in losses.items()} for kind in ("loss", "tail")}
        name = self.config.stages[index].name
        self.metrics.write("evaluation", step, name, **by_kind)
        shown = ", ".join(f"{found['loss']:.4f} at {length}" for length, found in losses.items())
        self.metrics.say(f"{name}: step {step}, held-out loss {shown}")
        return losses

    def cure(self) -> str:
        """What to do about a run that diverged."""
        latest = self.checkpoints.latest
        good = (
            "no checkpoint was saved before"
            if latest is None
            else f"the last good checkpoint is step {latest} of {self.checkpoints.folder}"
        )
        return f"Lower the learning rate or optimizer.clip, or lengthen the warmup; {good}."

    def finish_stage(self, index: int, state: State, step: int, trained_on: dict[str, Any] | None) -> None:
        """Evaluates and records a stage that has ended."""
        losses = self.evaluate(index, state, step)
        name = self.config.stages[index].name
        self.seen[name] = stage_entry(self.run, index, state, trained_on, losses)
        if jax.process_index() == 0:
            header = run_header(self.run, self.mesh, self.parameters, self.origin)
            text = {"text": self.text.digest, "held_out": [document.name for document in self.text.documents]}
            ended = [self.seen[stage.name] for stage in self.config.stages if stage.name in self.seen]
            write_record(self.folder, {**header, **text, "stages": ended})

    def _resumable(self) -> dict[str, Any] | None:
        """The note of the last checkpoint, which must be of this very run."""
        step = self.checkpoints.latest
        if step is None:
            return None
        meta = self.checkpoints.meta(step)
        where = f"step {step} of {self.checkpoints.folder}"
        check_same(meta["config"], self.config, where, meta["stage"] + (meta["feed"] is not None))
        if meta["checkpoint"] != self.origin:
            raise ValueError(
                f"`model.checkpoint` must hold the weights that {where} was trained from; got others. "
                "Restore them, or give the run another name."
            )
        if meta["text"] != self.text.digest:
            raise ValueError(
                f"`data.sources` must hold the text that {where} was trained on; got another. "
                "Restore it, or give the run another name."
            )
        return {**meta, "step": step}

    def _check_export(self) -> None:
        """An export that is there already must be that of the end of this run, or it would pass for it."""
        there, step = self.folder / EXPORT, self._meta["step"] if self._meta else 0
        if there.exists() and not 0 < step == self.config.steps:
            raise FileExistsError(
                f"`output` must hold no export before the last step, {self.config.steps}; got {there} at step {step}. "
                "It is of other weights: move it away, or give the run another name."
            )

    def begin(self) -> tuple[State, Point]:
        """The state to go on from, and where it stands; metrics of what is done again are dropped."""
        where = f"{self.mesh.size} x {self.mesh.devices.flat[0].device_kind}, in {self.folder}"
        opening = f"{self.config.name}: {self.parameters:,} weights on {where}"
        if self._meta is None:
            self.metrics.say(opening)
            self.metrics.keep(lambda line: False)
            return init_state(self.run, self.mesh, vocab=self.vocab), Point()
        step, stage = self._meta["step"], self._meta["stage"]
        names = [one.name for one in self.config.stages[: stage + (self._meta["feed"] is not None)]]
        self.metrics.keep(lambda line: line["step"] <= step and line["stage"] in names)
        wanted: dict[str, PyTree] = {"model": self.abstract["params"], "opt": self.abstract["opt"]}
        wanted |= {"frequencies": self.abstract["frequencies"]} if "frequencies" in self.abstract else {}
        items = self.checkpoints.restore(step, wanted)
        state = {"params": items.pop("model"), **items}
        self.metrics.say(f"{opening}; goes on from step {step} of {self.config.steps}")
        return state, Point(step, stage, self._meta["feed"])


def _vocab(run: Run, tokens: int) -> int:
    """Rows of the embedding."""
    config, published = run.config, run.subject.published
    if published is not None:
        # Its own may number tokens that no text has, such as that of an image, beyond the rows.
        if config.data.tokenizer and published.vocab < tokens:
            raise ValueError(
                f"`data.tokenizer` must give ids below the {published.vocab} rows of the checkpoint's embedding; got "
                f"{tokens} tokens. Leave it out to use the checkpoint's own."
            )
        return published.vocab
    if config.vocab and config.vocab < tokens:
        raise ValueError(f"`vocab` must be at least the {tokens} tokens of the text; got {config.vocab}. Write 0.")
    return config.vocab or tokens

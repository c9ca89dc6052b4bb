"""A training run in its folder: everything that can be wrong with it is found when its session is opened."""

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from rope_jax import nn
from rope_jax.experiment.checkpoint import Checkpoints, check_space
from rope_jax.experiment.training.config import bearing, check_same
from rope_jax.experiment.training.evaluation import HeldOut
from rope_jax.experiment.training.guard import check_numbers
from rope_jax.experiment.training.metrics import Metrics
from rope_jax.experiment.training.record import run_header, stage_entry, write_record
from rope_jax.experiment.training.rules import check_mesh
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.experiment.training.state import abstract_state, decoder_shape, init_state
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
    """A run that is open: its model, text and mesh, its checkpoints and what it says.

    Example:
      with Session(load_run("configs/train/quickstart.toml")) as session:
          train(session)

    Args:
      config: the run; its folder is `output/name`.
      devices: those to use; None: all of this program.

    Raises:
      ValueError, TypeError, OSError: something in the config cannot be done, the disk is too small, or the folder
        holds a damaged checkpoint or one of other settings.
      RuntimeError: another process trains in the folder.
    """

    def __init__(self, config: RunConfig, devices: Sequence[Any] | None = None) -> None:
        self.config = config
        self.mesh: Mesh = make_mesh(config.mesh, devices)
        check_mesh(config, self.mesh)
        self.text = read_text(config)
        self.vocab = _vocab(config, self.text.vocabulary.size)
        self.graphdef, self.abstract = abstract_state(config, self.mesh, vocab=self.vocab)
        self.shape = decoder_shape(config, vocab=self.vocab)
        whole = replace(self.shape, sharding=None)
        self.undivided, _ = nnx.split(nnx.eval_shape(lambda: nn.Decoder(whole, rngs=nnx.Rngs(0))))
        self.folder = Path(config.output) / config.name
        saves = config.checkpoint
        kept = saves.keep + (config.steps // saves.keep_every if saves.keep_every else 0)
        check_space(self.folder / "checkpoints", self.abstract, kept)
        self.held_out = HeldOut(config, self.text.documents, self.graphdef, self.mesh, self.text.vocabulary.bos)
        # Last, since they make the folder.
        _make(self.folder)
        self._lock = _locked(self.folder)
        try:
            self.checkpoints = Checkpoints(self.folder / "checkpoints", keep=saves.keep, keep_every=saves.keep_every)
            self._meta = self._resumable()
        except BaseException:
            self._unlock()
            raise
        self.metrics = Metrics(self.folder, config, writes=jax.process_index() == 0)
        self.seen: dict[str, dict[str, Any]] = dict(self._meta["seen"]) if self._meta else {}
        self.signal: int | None = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception: object) -> None:
        self.checkpoints.__exit__(*exception)
        self.metrics.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract["params"]))

    def save(self, state: State, point: Point, *, wait: bool = False) -> None:
        """A checkpoint of a state that stands at a point."""
        meta = {
            "config": bearing(self.config),
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
        lengths = sorted({*self.config.lengths, self.config.stages[index].length})
        losses = {}
        for length in lengths:
            schedules = evaluated_schedules(self.config, index, state, length)
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
        self.seen[name] = stage_entry(self.config, index, state, trained_on, losses)
        if jax.process_index() == 0:
            header = run_header(self.config, self.mesh, self.parameters)
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
        check_same(meta["config"], self.config, where)
        if meta["text"] != self.text.digest:
            raise ValueError(
                f"`data.sources` must hold the text that {where} was trained on; got another. "
                "Restore it, or give the run another name."
            )
        return {**meta, "step": step}

    def begin(self) -> tuple[State, Point]:
        """The state to go on from, and where it stands; metrics of what is done again are dropped."""
        where = f"{self.mesh.size} x {self.mesh.devices.flat[0].device_kind}, in {self.folder}"
        opening = f"{self.config.name}: {self.parameters:,} weights on {where}"
        if self._meta is None:
            self.metrics.say(opening)
            self.metrics.keep(lambda line: False)
            return init_state(self.config, self.mesh, vocab=self.vocab), Point()
        step, stage = self._meta["step"], self._meta["stage"]
        names = [one.name for one in self.config.stages[: stage + (self._meta["feed"] is not None)]]
        self.metrics.keep(lambda line: line["step"] <= step and line["stage"] in names)
        wanted: dict[str, PyTree] = {"model": self.abstract["params"], "opt": self.abstract["opt"]}
        wanted |= {"frequencies": self.abstract["frequencies"]} if "frequencies" in self.abstract else {}
        items = self.checkpoints.restore(step, wanted)
        state = {"params": items.pop("model"), **items}
        self.metrics.say(f"{opening}; goes on from step {step} of {self.config.steps}")
        return state, Point(step, stage, self._meta["feed"])


def _vocab(config: RunConfig, tokens: int) -> int:
    """Rows of the embedding."""
    if config.vocab and config.vocab < tokens:
        raise ValueError(f"`vocab` must be at least the {tokens} tokens of the text; got {config.vocab}. Write 0.")
    return config.vocab or tokens


def _make(folder: Path) -> None:
    """The folder of a run, which may be there; nothing is made where a file stands in the way of its parts."""
    for part in (*reversed(folder.parents), folder, folder / "checkpoints", folder / "tensorboard"):
        if part.exists() and not part.is_dir():
            raise NotADirectoryError(
                f"`output` must lead to a folder; got the file {part}. Move it, or write elsewhere."
            )
    there = next(part for part in (folder, *folder.parents) if part.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"`output` must be a folder to write in; got {there}, which is not. Write elsewhere.")
    folder.mkdir(parents=True, exist_ok=True)


def _locked(folder: Path) -> TextIO | None:
    """The folder's lock, held by the first process; the system lets go of it when that ends, however it ends."""
    if jax.process_index():
        return None
    lock = (folder / "lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise RuntimeError(
            f"`output` must be a folder that nobody else trains in; got {folder}, which another process has open. "
            "Wait for it, or give the run another name."
        ) from None
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock

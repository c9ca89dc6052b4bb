"""What a run says of itself: lines of JSON for machines, TensorBoard events, lines of text for people."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from rope_jax.experiment.training.settings import RunConfig

FILE = "metrics.jsonl"


class Metrics:
    """The metrics of a run in its folder; of several processes only one writes.

    A line is whole or absent: one cut by a kill is dropped when the run goes on, and so are those of steps that are
    done again.

    Args:
      folder: of the run.
      config: the run.
      writes: whether this process does.
      console: for the lines of text; standard error by default.
    """

    def __init__(self, folder: Path, config: RunConfig, *, writes: bool = True, console: Console | None = None) -> None:
        self.path = folder / FILE
        self._writes = writes
        self._console = console or Console(stderr=True)
        self._sinks: list[Callable[[int, Mapping[str, float]], None]] = []
        self._closers: list[Callable[[], None]] = []
        if writes and config.log.tensorboard:
            self._add_tensorboard(folder / "tensorboard")
        if writes and config.log.wandb:
            self._add_wandb(config, folder)

    def close(self) -> None:
        """Ends the other sinks."""
        for close in self._closers:
            close()

    def say(self, line: str) -> None:
        """A line for people."""
        if self._writes:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def write(self, kind: str, step: int, stage: str, **values: Any) -> None:
        """One line of metrics, on the disk when this returns to the system; numbers go to the other sinks as well.

        Args:
          kind: "train", "evaluation" or "attention".
          step: of the run.
          stage: its name.
          values: numbers, None, lists or dicts of them.
        """
        if not self._writes:
            return
        line = {"kind": kind, "step": step, "stage": stage, **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        flat = dict(_numbers(values, kind))
        for sink in self._sinks:
            sink(step, flat)

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drops all lines but those wanted, and a torn one."""
        if not self._writes or not self.path.is_file():
            return
        lines = [line for line in lines_of(self.path) if wanted(line)]
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        os.replace(draft, self.path)

    def _add_tensorboard(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        writer = SummaryWriter(str(folder), flush_secs=10)

        def add(step: int, numbers: Mapping[str, float]) -> None:
            for name, number in numbers.items():
                writer.add_scalar(name, number, step)

        self._sinks.append(add)
        self._closers.append(writer.close)

    def _add_wandb(self, config: RunConfig, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise ImportError(
                '`log.wandb` must be empty without the package; got a project. Install "rope-jax[wandb]", or empty it.'
            ) from None
        run = wandb.init(project=config.log.wandb, name=config.name, dir=str(folder), resume="allow")
        self._sinks.append(lambda step, numbers: run.log(dict(numbers), step=step))
        self._closers.append(run.finish)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file.

    Raises:
      ValueError: one that ends is none that a run has written.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return [_line(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line]


def _line(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not (isinstance(found, dict) and {"kind", "step", "stage"} <= found.keys()):
        raise ValueError(
            f"`metrics` must be lines of JSON, each with kind, step and stage; got {line[:40]!r} in {where}. Delete it."
        )
    return found


def _numbers(values: Mapping[str, Any], prefix: str) -> list[tuple[str, float]]:
    """Every number of nested values with a path such as `evaluation/loss/64`."""
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        path = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            found += _numbers(value, path)
        elif isinstance(value, list):
            found += _numbers({str(index): item for index, item in enumerate(value)}, path)
        elif isinstance(value, int | float):
            found.append((path, float(value)))
    return found

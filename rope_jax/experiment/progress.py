"""What a run says while it works: a bar with the time left on a terminal, plain lines elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

UNKNOWN = "time left unknown"


class Reporter:
    """Counts work, in tokens passed forward, so that the time left weighs a training step and a short window rightly.

    Example:
      with Reporter() as reporter:
          reporter.begin(cells=12, finished=3, work=4.5e6)
          reporter.advance(1e5, "step 20/600, loss 3.1")
          reporter.cell_ended("YaRN x4 at 256: loss 1.46")

    Args:
      console: where to write; standard error by default, so that standard output holds results only.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self._task = self._bar.add_task("", total=None, left="")
        self._cells = self._ended = 0
        self._work = self._advanced = 0.0
        self._start = time.perf_counter()

    def __enter__(self) -> "Reporter":
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, *, cells: int, finished: int, work: float) -> None:
        """Say what lies ahead: all cells, those finished by an earlier run, and the work of the others."""
        self._cells, self._ended, self._work = cells, finished, work
        self._start = time.perf_counter()
        self._bar.update(self._task, total=work)
        earlier = f", {finished} finished earlier" if finished else ""
        self.console.print(f"{cells} cells{earlier}", highlight=False)

    def skip(self, work: float) -> None:
        """Take work out of the count that an earlier run has done."""
        self._work -= work
        self._bar.update(self._task, total=self._work)

    def advance(self, work: float, line: str | None = None) -> None:
        """Count work done; `line` is said where there is no bar, and stands before the bar where there is."""
        self._advanced += work
        self._bar.update(self._task, completed=self._advanced, left=self.left())
        if line is None:
            return
        if self.console.is_terminal:
            self._bar.update(self._task, description=line)
        else:
            self._say(f"{line}; {self.left()}")

    def cell_ended(self, line: str) -> None:
        """Say how a cell ended."""
        self._ended += 1
        tail = "" if self.console.is_terminal else f"; {self.left()}"
        self._say(f"[{self._ended}/{self._cells}] {line}{tail}")

    def note(self, line: str) -> None:
        """Say something that a reader of the numbers must know."""
        self._say(f"note: {line}")

    def left(self) -> str:
        """The time left at the pace so far."""
        if self._advanced <= 0:
            return UNKNOWN
        seconds = (time.perf_counter() - self._start) * max(self._work / self._advanced - 1, 0.0)
        return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class Pace:
    """Follows one training: loss, tokens per second, and how far the run is.

    Example:
      observe = Pace(reporter, "base, seed 0", tokens_per_step=2048, steps=600)
      observe(20, 3.1)

    Args:
      reporter: what the lines go to.
      name: whose training it is.
      tokens_per_step: tokens that a step trains on.
      steps: of the whole training.
      counted: whether the training is part of the work that the reporter was told of.
    """

    def __init__(
        self, reporter: Reporter, name: str, *, tokens_per_step: int, steps: int, counted: bool = True
    ) -> None:
        self._reporter = reporter
        self._name = name
        self._tokens = tokens_per_step
        self._steps = steps
        self._counted = counted
        self._last, self._when = 0, time.perf_counter()

    def __call__(self, step: int, loss: float | None) -> None:
        """`step` steps are done; without a loss, an earlier run did them."""
        work = 3.0 * self._tokens * (step - self._last) if self._counted else 0.0
        now = time.perf_counter()
        if loss is None:
            self._reporter.skip(work)
            if 0 < step < self._steps:
                self._reporter.advance(0.0, f"{self._name}: goes on from step {step}")
        else:
            speed = self._tokens * (step - self._last) / max(now - self._when, 1e-9)
            line = f"{self._name}: step {step}/{self._steps}, loss {loss:.4f}, {speed:,.0f} tokens/s"
            self._reporter.advance(work, line)
        self._last, self._when = step, now

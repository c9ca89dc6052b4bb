"""What each cell of a sweep needs first, which cells can begin, and which of them suits a worker best."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.plan import Cell
from rope_jax.experiment.results import cell_key

Place = tuple[str, Any]

# What holds up most of the others is measured first.
RANKS = ("training", "truncated_loss")


@dataclass(frozen=True)
class Agenda:
    """The cells of a sweep by key, in the order of the plan, and for each the keys that must be finished before it.

      training on top of others  <-  the training of those
      truncated_loss             <-  the training of its weights; of tuned weights also the plain truncated_loss
      loss                       <-  the training and the truncated_loss of its weights
      passkey_accuracy           <-  the training of its weights

    What is no cell of the sweep (the training of a checkpoint's own weights) is needed by none.
    """

    cells: dict[str, Cell]
    needs: dict[str, frozenset[str]]

    def ready(self, finished: AbstractSet[str], taken: AbstractSet[str]) -> list[str]:
        """The cells that can begin: all that they need is finished, and they are neither finished nor taken.

        Args:
          finished: keys of cells with a number.
          taken: keys of cells that are being measured or were given up.
        """
        return [key for key in self.cells if key not in finished and key not in taken and self.needs[key] <= finished]

    def stuck(self, failed: AbstractSet[str]) -> list[str]:
        """The cells that need a failed one, directly or through others."""
        blocked = set(failed)
        found = []
        # Needs come before what needs them.
        for key, needs in self.needs.items():
            if key not in failed and needs & blocked:
                blocked.add(key)
                found.append(key)
        return found

    def choice(self, ready: Sequence[str], last: str | None) -> str:
        """The cell that a worker begins: what others wait for first, then what it holds the weights or the text of.

        Args:
          ready: keys in the order of the plan, at least one.
          last: key of the worker's last cell, if it had one.
        """
        held = None if last is None else self.cells[last]

        def cost(key: str) -> tuple[int, bool, bool]:
            cell = self.cells[key]
            rank = RANKS.index(cell.metric) if cell.metric in RANKS else len(RANKS)
            return rank, held is None or cell.weights != held.weights, held is None or cell.seed != held.seed

        return min(ready, key=cost)


def agenda_of(config: ExperimentConfig, cells: Sequence[Cell]) -> Agenda:
    """The agenda of planned cells."""
    keys = {cell_key(config, cell.row()): cell for cell in cells}
    places: dict[Place, str] = {(cell.metric, cell.weights): key for key, cell in keys.items() if cell.metric in RANKS}
    needs = {}
    for key, cell in keys.items():
        found = {places[place] for place in _needed(cell) if place in places}
        needs[key] = frozenset(found - {key})
    return Agenda(keys, needs)


def _needed(cell: Cell) -> list[Place]:
    """(Metric, weights) of what must come before a cell; the cell itself may be among them."""
    plain = (cell.seed, None, None)
    if cell.metric == "training":
        return [("training", plain)]
    # The plain weights too: tuned ones are restored on top of them.
    trained: list[Place] = [("training", plain), ("training", cell.weights)]
    if cell.metric == "truncated_loss":
        return [*trained, ("truncated_loss", plain)]
    return [*trained, ("truncated_loss", cell.weights)] if cell.metric == "loss" else trained


def describe(cell: Cell) -> str:
    """A cell in words."""
    factor = f" x{cell.factor:g}" if cell.calls.takes_factor else ""
    tuned = ""
    if cell.tuned_method and cell.metric != "training":
        tuned = f" on weights tuned with {cell.calls.label}"
    what = f"{cell.metric} {cell.label}{factor} at {cell.length}"
    if cell.metric == "truncated_loss":
        what = f"{cell.metric}, the baseline ({cell.label}) within {cell.length}"
    return f"{what}{tuned}, seed {cell.seed}"

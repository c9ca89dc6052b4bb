"""The sweep: train, evaluate every method at every length, fine-tune, evaluate again, and write the report.

    python scripts/extrapolate.py configs/quickstart.toml
    python scripts/extrapolate.py configs/quickstart.toml --train.steps 100 --seeds 0 1 2
    python scripts/extrapolate.py --checkpoint path/to/model --text book.txt --sweep.multiples 1 2
    python scripts/extrapolate.py configs/quickstart.toml --output /shared/runs --executor ray --address HOST:6379

Stopped at any moment and started again, it goes on with the first unfinished cell.
"""

import os
import sys
from pathlib import Path

from rich.console import Console

from rope_jax.experiment.command import UnfinishedError, run_script
from rope_jax.experiment.report import terminal_table, write_report
from rope_jax.experiment.sweep import Sweep


def execute(sweep: Sweep) -> Path:
    with sweep:
        outcome = sweep.run()
    # A file or pipe has no width of its own, and a table must not break its words there.
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=120)
    console.print(terminal_table(sweep.rows()))
    for reason in outcome.failed:
        print(f"failed: {reason}", file=sys.stderr)
    for folder in outcome.exported:
        print(f"exported: {folder}")
    # Without a single row there is nothing to report.
    report = write_report(sweep.folder) if sweep.rows() else sweep.folder
    if outcome.unfinished:
        raise UnfinishedError(report, outcome.unfinished)
    return report


if __name__ == "__main__":
    raise SystemExit(
        run_script("Train, sweep methods over lengths, fine-tune, report.", Sweep, execute, executors=True)
    )

"""Training alone: the base weights of every seed and their fine-tunes; `extrapolate.py` with the same config goes on.

python scripts/train.py configs/quickstart.toml --train.steps 100
"""

from pathlib import Path

from rope_jax.experiment.command import run_script
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.model import Subject
from rope_jax.experiment.sweep import Sweep


def prepare(config: ExperimentConfig, subject: Subject | None = None) -> Sweep:
    if not config.trains:
        raise ValueError("`finetune.steps` must be above 0 to train a checkpoint; got 0. Set it.")
    return Sweep(config, subject, metrics=("training",))


def execute(sweep: Sweep) -> Path:
    with sweep:
        outcome = sweep.run()
    for folder in outcome.exported:
        print(f"exported: {folder}")
    return sweep.folder / "checkpoints"


if __name__ == "__main__":
    raise SystemExit(
        run_script("Train the weights of an experiment, resuming from the last checkpoint.", prepare, execute)
    )

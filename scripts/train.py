"""Train a model in stages, on one device or many.

python scripts/train.py configs/train/quickstart.toml --stages.0.steps 100
"""

from rope_jax.experiment.training.command import main

if __name__ == "__main__":
    raise SystemExit(main())

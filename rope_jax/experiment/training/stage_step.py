"""The step of a stage, jitted: what scripts/train.py runs and the compiler is asked about."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import PyTree

from rope_jax.experiment.training.optimizer import stage_optimizer
from rope_jax.experiment.training.settings import RunConfig, StageConfig
from rope_jax.experiment.training.step import build_step


def stage_step(config: RunConfig, index: int, graphdef: nnx.GraphDef, abstract: PyTree) -> Any:
    """The jitted step of a stage; the state is donated and stays where it lies.

    Args:
      config: the run.
      index: of the stage.
      graphdef, abstract: from `abstract_state`.
    """
    stage, compute = config.stages[index], config.compute
    step = build_step(
        graphdef,
        stage_optimizer(config, index),
        loss_chunk=compute.loss_chunk,
        accumulate=compute.accumulate,
        dots=compute.remat == "dots",
        learnable=stage.learnable,
        order=token_order(config, stage),
    )
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(step, donate_argnums=0, out_shardings=(places, None))


def token_order(config: RunConfig, stage: StageConfig) -> str:
    """What `attend` may rely on: PoSE leaves gaps between positions that otherwise rise in steps of 1."""
    return "increasing" if (stage.data or config.data).pose_chunks else "contiguous"

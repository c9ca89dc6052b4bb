"""The training state: its shapes, where each part lies, and its first values, drawn where they lie."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from rope_jax import nn
from rope_jax.attention.sharding import Sharding
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.model import decoder_config
from rope_jax.experiment.training.frequencies import logarithms
from rope_jax.experiment.training.optimizer import stage_optimizer
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.experiment.training.stages import stage_schedules, stage_subject
from rope_jax.experiment.training.step import State
from rope_jax.parallel import batch_sharding, state_shardings

BYTES = 256
"""Tokens of a text without a tokenizer."""


def decoder_shape(config: RunConfig, *, vocab: int | None = None) -> nn.DecoderConfig:
    """The decoder of a run, for any mesh.

    Args:
      config: the run.
      vocab: tokens there are; None: one for every byte. The embedding has `config.vocab` rows where that is set.
    """
    compute = config.compute
    experiment = ExperimentConfig(name=config.name, model=config.model)
    shape = decoder_config(experiment, stage_subject(config), vocab=config.vocab or vocab or BYTES)
    return dataclasses.replace(
        shape,
        max_length=config.longest if config.model.positional == "learned" else None,
        remat=shape.remat or compute.remat == "layers",
        backend=compute.backend,
        sharding=Sharding(form=compute.context_form, order=compute.context_order),
    )


def _initial(config: RunConfig, shape: nn.DecoderConfig) -> Callable[[], State]:
    """What makes the state before the first step."""
    learnable = any(stage.learnable for stage in config.stages)
    frequencies = logarithms(stage_schedules(config, 0)) if learnable else None

    def state() -> State:
        params = nnx.split(nn.Decoder(shape, rngs=nnx.Rngs(config.seed)))[1]
        parts: State = {"params": params}
        trained: Any = params
        if frequencies is not None:
            parts["frequencies"] = frequencies
            trained = dict(parts)
        return {**parts, "opt": stage_optimizer(config, 0).init(trained)}

    return state


def abstract_state(config: RunConfig, mesh: Mesh, *, vocab: int | None = None) -> tuple[nnx.GraphDef, PyTree]:
    """The decoder's structure, and the shape, dtype and place of every part of the state; nothing is computed.

    Args:
      config: the run.
      mesh: from `make_mesh`.
      vocab: tokens there are, as in `decoder_shape`.

    Returns:
      (graphdef for `build_step`, tree of `jax.ShapeDtypeStruct` with shardings).

    Raises:
      ValueError: an axis of a parameter that its mesh axis does not divide.
    """
    shape = decoder_shape(config, vocab=vocab)
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: nn.Decoder(shape, rngs=nnx.Rngs(0))))
    shapes = jax.eval_shape(_initial(config, shape))
    return graphdef, placed(shapes, state_shardings(shapes, mesh))


def placed(shapes: PyTree, shardings: PyTree) -> PyTree:
    """Shapes and dtypes with the shardings of a tree beside them."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )


def init_state(config: RunConfig, mesh: Mesh, *, vocab: int | None = None) -> State:
    """The state before the first step: every device draws its own part, and all meshes draw the same numbers.

    Arguments and errors as in `abstract_state`.
    """
    shape = decoder_shape(config, vocab=vocab)
    make = _initial(config, shape)
    shardings = state_shardings(jax.eval_shape(make), mesh)
    return jax.jit(make, out_shardings=shardings)()


def abstract_batch(rows: int, length: int, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch as the step takes it: shapes, dtypes and places."""
    kinds = dict.fromkeys(("inputs", "targets", "positions", "segments"), jnp.int32) | {"weights": jnp.float32}
    over = batch_sharding(mesh)
    return {name: jax.ShapeDtypeStruct((rows, length), kind, sharding=over) for name, kind in kinds.items()}

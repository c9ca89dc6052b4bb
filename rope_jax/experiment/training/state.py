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
from rope_jax.experiment.model import decoder_config
from rope_jax.experiment.training.frequencies import logarithms
from rope_jax.experiment.training.optimizer import stage_optimizer
from rope_jax.experiment.training.stages import stage_schedules
from rope_jax.experiment.training.start import Run, experiment, read_weights
from rope_jax.experiment.training.step import State
from rope_jax.parallel import batch_sharding, state_shardings

BYTES = 256
"""Tokens of a text without a tokenizer."""


def decoder_shape(run: Run, *, vocab: int | None = None) -> nn.DecoderConfig:
    """The decoder of a run, for any mesh.

    Args:
      run: the run.
      vocab: tokens there are; None: one for every byte. The embedding has `config.vocab` rows where that is set, and
        those of the checkpoint where there is one.
    """
    config, compute = run.config, run.config.compute
    shape = decoder_config(experiment(config), run.subject, vocab=config.vocab or vocab or BYTES)
    return dataclasses.replace(
        shape,
        max_length=run.longest if shape.positional == "learned" else None,
        remat=shape.remat or compute.remat == "layers",
        backend=compute.backend,
        sharding=Sharding(form=compute.context_form, order=compute.context_order),
    )


def _drawn(run: Run, shape: nn.DecoderConfig) -> PyTree:
    """Weights before any training."""
    return nnx.split(nn.Decoder(shape, rngs=nnx.Rngs(run.config.seed)))[1]


def _completing(run: Run) -> Callable[[PyTree], State]:
    """What makes the state before the first step of the weights at that point."""
    learnable = any(stage.learnable for stage in run.config.stages)
    frequencies = logarithms(stage_schedules(run, 0)) if learnable else None

    def state(params: PyTree) -> State:
        parts: State = {"params": params}
        trained: Any = params
        if frequencies is not None:
            parts["frequencies"] = frequencies
            trained = dict(parts)
        return {**parts, "opt": stage_optimizer(run.config, 0).init(trained)}

    return state


def abstract_state(run: Run, mesh: Mesh, *, vocab: int | None = None) -> tuple[nnx.GraphDef, PyTree]:
    """The decoder's structure, and the shape, dtype and place of every part of the state; nothing is computed.

    Args:
      run: the run.
      mesh: from `make_mesh`.
      vocab: tokens there are, as in `decoder_shape`.

    Returns:
      (graphdef for `build_step`, tree of `jax.ShapeDtypeStruct` with shardings).

    Raises:
      ValueError: an axis of a parameter that its mesh axis does not divide.
    """
    shape = decoder_shape(run, vocab=vocab)
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: nn.Decoder(shape, rngs=nnx.Rngs(0))))
    complete = _completing(run)
    shapes = jax.eval_shape(lambda: complete(_drawn(run, shape)))
    return graphdef, placed(shapes, state_shardings(shapes, mesh))


def placed(shapes: PyTree, shardings: PyTree) -> PyTree:
    """Shapes and dtypes with the shardings of a tree beside them."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )


def init_state(run: Run, mesh: Mesh, *, vocab: int | None = None) -> State:
    """The state before the first step: every device draws its own part, and all meshes draw the same numbers.

    The weights of a checkpoint are read and every device is given its own part.

    Arguments and errors as in `abstract_state`, and those of reading a checkpoint.
    """
    shape, complete = decoder_shape(run, vocab=vocab), _completing(run)

    def drawn() -> State:
        return complete(_drawn(run, shape))

    places = state_shardings(jax.eval_shape(drawn), mesh)
    if run.checkpoint is None:
        return jax.jit(drawn, out_shardings=places)()
    # Donated, since the state holds the very same weights.
    return jax.jit(complete, out_shardings=places, donate_argnums=0)(read_weights(run.checkpoint, places["params"]))


def abstract_batch(rows: int, length: int, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch as the step takes it: shapes, dtypes and places."""
    kinds = dict.fromkeys(("inputs", "targets", "positions", "segments"), jnp.int32) | {"weights": jnp.float32}
    over = batch_sharding(mesh)
    return {name: jax.ShapeDtypeStruct((rows, length), kind, sharding=over) for name, kind in kinds.items()}

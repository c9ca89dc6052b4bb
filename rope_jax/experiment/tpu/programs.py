"""The programs of a run, lowered for devices that need not be there: the train step, the evaluation, decoding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PyTree

from rope_jax.experiment.training.evaluation import build_evaluation
from rope_jax.experiment.training.rules import check_mesh
from rope_jax.experiment.training.settings import RunConfig, StageConfig
from rope_jax.experiment.training.stage_step import stage_step
from rope_jax.experiment.training.stages import stage_schedules
from rope_jax.experiment.training.start import Run
from rope_jax.experiment.training.state import abstract_batch, abstract_state
from rope_jax.parallel import batch_sharding, make_mesh, replicated


@dataclass(frozen=True, eq=False)
class Lowering:
    """A program that waits for its compiler.

    Attributes:
      lowered: from `jax.jit(...).lower(...)`.
      stage: of the run.
      mesh: how the devices are arranged.
      rows, length: of the batch; of decoding, the rows and the tokens that the cache holds.
    """

    lowered: Any
    stage: StageConfig
    mesh: Mesh
    rows: int
    length: int


def lowered(run: Run, devices: list[Any], *, what: str = "step", stage: str | None = None) -> Lowering:
    """A program of a run as its script would call it, of shapes alone.

    Args:
      run: from `open_run`; of a checkpoint, no weights are read.
      devices: what to compile for.
      what: "step", "evaluate" or "decode": one new token a row, with a cache of the stage's length.
      stage: which one, by name; None: the one with the longest rows, of those that train where there are any.

    Raises:
      ValueError: no such stage, or sizes that the mesh does not divide.
    """
    config = run.config
    index = _stage_index(config, stage)
    mesh = make_mesh(config.mesh, devices)
    check_mesh(run, mesh)
    chosen = config.stages[index]
    graphdef, state = abstract_state(run, mesh)
    # Computed here, on this machine: beneath the mesh every array would belong to devices that are not there.
    schedules = _abstract(stage_schedules(run, index), replicated(mesh))
    rows = config.rows(chosen)
    with jax.set_mesh(mesh):
        made = PROGRAMS[what](config, index, graphdef, state, schedules, mesh, rows)
    return Lowering(made, chosen, mesh, rows, chosen.length)


def _stage_index(config: RunConfig, name: str | None) -> int:
    names = [stage.name for stage in config.stages]
    if name is None:
        return max(range(len(names)), key=lambda i: (config.stages[i].steps > 0, config.stages[i].length))
    if name not in names:
        raise ValueError(f"`stage` must be one of {', '.join(names)}; got {name!r}. Choose one of them.")
    return names.index(name)


def _abstract(tree: PyTree, sharding: NamedSharding) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def _step(
    config: RunConfig, index: int, graphdef: nnx.GraphDef, state: PyTree, schedules: Any, mesh: Mesh, rows: int
) -> Any:
    """The very step that scripts/train.py runs."""
    batch = abstract_batch(rows, config.stages[index].length, mesh)
    return stage_step(config, index, graphdef, state).lower(state, schedules, batch)


def _evaluate(
    config: RunConfig, index: int, graphdef: nnx.GraphDef, state: PyTree, schedules: Any, mesh: Mesh, rows: int
) -> Any:
    """The loss of held-out windows, as many as a training batch has rows."""
    batch = abstract_batch(rows, config.stages[index].length, mesh)
    batch = {name: batch[name] for name in ("inputs", "targets", "positions", "weights")} | {"tail": batch["weights"]}
    evaluation = build_evaluation(graphdef, loss_chunk=config.compute.loss_chunk, order="contiguous")
    return evaluation.lower(state["params"], schedules, batch)


def _decode(
    config: RunConfig, index: int, graphdef: nnx.GraphDef, state: PyTree, schedules: Any, mesh: Mesh, rows: int
) -> Any:
    """One token a row against a full cache, which is donated and returned."""
    length = config.stages[index].length
    cache = jax.eval_shape(lambda: nnx.merge(graphdef, state["params"]).empty_cache(rows, length))
    cache = jax.tree.map(lambda leaf: _cached(leaf, rows, mesh), cache)
    tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32, sharding=NamedSharding(mesh, P(*batch_sharding(mesh).spec[:1])))

    def decode(cache: Any, params: PyTree, schedules: Any, tokens: Array, positions: Array) -> tuple[Array, Any]:
        logits, longer = nnx.merge(graphdef, params)(tokens, schedules, positions=positions, cache=cache)
        return jnp.argmax(logits[:, -1], axis=-1), longer

    return jax.jit(decode, donate_argnums=0).lower(cache, state["params"], schedules, tokens, tokens)


def _cached(leaf: Any, rows: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """A part of the cache where its rows and heads lie: keys are [layers, rows, capacity, kv_heads, head_dim]."""
    over = batch_sharding(mesh).spec[0]
    divided = P(over) if leaf.ndim and leaf.shape[0] == rows else P()
    spec = P(None, over, None, "tensor") if leaf.ndim == 5 else divided
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


PROGRAMS: Mapping[str, Callable[..., Any]] = MappingProxyType({"step": _step, "evaluate": _evaluate, "decode": _decode})

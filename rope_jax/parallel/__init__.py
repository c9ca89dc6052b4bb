"""How a model is divided over devices: the mesh, the axes of every parameter, processes that work together."""

from rope_jax.parallel.distributed import initialise
from rope_jax.parallel.mesh import AXES, MeshShape, make_mesh
from rope_jax.parallel.rules import (
    PARAMETERS,
    RULES,
    batch_sharding,
    param_axes,
    replicated,
    state_shardings,
)

__all__ = [
    "AXES",
    "PARAMETERS",
    "RULES",
    "MeshShape",
    "batch_sharding",
    "initialise",
    "make_mesh",
    "param_axes",
    "replicated",
    "state_shardings",
]

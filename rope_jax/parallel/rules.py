"""Which axis of which parameter is divided over which axis of the mesh: the one place that says so."""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

Axes = tuple[str | None, ...]

RULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed": ("fsdp", "context"),
        "heads": ("tensor",),
        "kv_heads": ("tensor",),
        "mlp": ("tensor",),
        "vocab": ("tensor",),
        "layers": (),
    }
)
"""Logical axis -> the mesh axes that it is divided over; none: in one piece. The shards of a row hold parts of the
parameters as well, since each would otherwise hold all of them."""

PARAMETERS: Mapping[str, Axes] = MappingProxyType(
    {
        "embedding": ("vocab", "embed"),
        "unembedding": ("embed", "vocab"),
        "learned.table": (None, "embed"),
        "norm.scale": (None,),
        "norm.bias": (None,),
        "blocks.*norm.scale": ("layers", None),
        "blocks.*norm.bias": ("layers", None),
        "blocks.attention.query.kernel": ("layers", "embed", "heads"),
        "blocks.attention.query.bias": ("layers", "heads"),
        "blocks.attention.key.kernel": ("layers", "embed", "kv_heads"),
        "blocks.attention.key.bias": ("layers", "kv_heads"),
        "blocks.attention.value.kernel": ("layers", "embed", "kv_heads"),
        "blocks.attention.value.bias": ("layers", "kv_heads"),
        "blocks.attention.out.kernel": ("layers", "heads", "embed"),
        "blocks.attention.out.bias": ("layers", None),
        "blocks.attention.sinks": ("layers", "heads"),
        "blocks.attention.scalable_softmax.scale": ("layers", "heads"),
        "blocks.mlp.gate.kernel": ("layers", "embed", "mlp"),
        "blocks.mlp.gate.bias": ("layers", "mlp"),
        "blocks.mlp.up.kernel": ("layers", "embed", "mlp"),
        "blocks.mlp.up.bias": ("layers", "mlp"),
        "blocks.mlp.down.kernel": ("layers", "mlp", "embed"),
        "blocks.mlp.down.bias": ("layers", None),
        "frequencies.*": (None,),
    }
)
"""Parameter -> its logical axes; None: never divided. A star stands for any part of a name."""


def param_axes(path: tuple[Any, ...], leaf: Any) -> Axes:
    """The logical axes of a parameter, or of a moment of one, by the tail of its path.

    Args:
      path: as `jax.tree_util.tree_leaves_with_path` gives it; what stands before the parameter's name is not read.
      leaf: anything with a shape; a scalar, such as a count of steps, has no axes.

    Raises:
      ValueError: a parameter that the table does not name, or with another number of axes.

    Example:
      >>> key = jax.tree_util.DictKey
      >>> param_axes((key("mu"), key("embedding")), jax.ShapeDtypeStruct((256, 16), "float32"))
      ('vocab', 'embed')
    """
    if len(leaf.shape) == 0:
        return ()
    name = _name(path)
    for pattern, axes in PARAMETERS.items():
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}"):
            if len(axes) != len(leaf.shape):
                raise ValueError(
                    f"`{name}` must have the axes {axes} of rope_jax.parallel.rules.PARAMETERS; got shape "
                    f"{tuple(leaf.shape)}. Correct its row there."
                )
            return axes
    raise ValueError(
        f"`{name}` must have a row in rope_jax.parallel.rules.PARAMETERS; got none for shape {tuple(leaf.shape)}. "
        "Add the name and its axes."
    )


def state_shardings(abstract_state: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Where every leaf of a training state lies: parameters by `PARAMETERS` and `RULES`, their moments beside them.

    Args:
      abstract_state: parameters, optimizer state or both, arrays or `jax.ShapeDtypeStruct`.
      mesh: from `make_mesh`.

    Returns:
      The same tree of `NamedSharding`; scalars are replicated.

    Raises:
      ValueError: a parameter that the table does not name, or an axis that its mesh axis does not divide.

    Example:
      >>> from rope_jax.parallel import MeshShape, make_mesh
      >>> mesh = make_mesh(MeshShape(), devices=jax.devices()[:1])
      >>> tuple(state_shardings({"embedding": jax.ShapeDtypeStruct((256, 16), "float32")}, mesh)["embedding"].spec)
      ('tensor', ('fsdp', 'context'))
    """

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        spec = []
        for axis, size in zip(param_axes(path, leaf), leaf.shape, strict=True):
            over = () if axis is None else RULES[axis]
            ways = math.prod(mesh.shape[name] for name in over)
            if size % ways:
                rule = f"`mesh.{' * mesh.'.join(over)}` must divide the axis {axis} of {_name(path)}, {size}"
                raise ValueError(f"{rule}; got {ways}. Choose a divisor, or another size.")
            spec.append(over if len(over) > 1 else over[0] if over else None)
        return NamedSharding(mesh, P(*spec))

    return jax.tree_util.tree_map_with_path(sharding, abstract_state)


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Where a batch [rows, length] lies: rows over data and fsdp, tokens over context."""
    return NamedSharding(mesh, P(("data", "fsdp"), "context"))


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The whole of an array on every device."""
    return NamedSharding(mesh, P())


def _name(path: tuple[Any, ...]) -> str:
    """The dotted name of a leaf; a Flax variable's own `value` is left out."""
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return ".".join(parts[:-1] if parts[-1:] == ["value"] else parts)

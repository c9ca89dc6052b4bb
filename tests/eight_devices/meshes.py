"""Meshes of eight devices, and what is dealt out over them."""

from contextlib import contextmanager

import jax
import numpy as np
from jax.sharding import AxisType

from rope_jax.attention import dealt, restored

MESHES = {
    "8 x 1": {"data": 8},
    "2 x 4": {"data": 2, "context": 4},
    "4 x 2": {"data": 4, "context": 2},
    "fsdp x context": {"fsdp": 2, "context": 4},
    "tensor x context": {"tensor": 2, "context": 4},
    "data x tensor": {"data": 4, "tensor": 2},
    "1 x 8": {"context": 8},
}


@contextmanager
def mesh(name):
    """The mesh of that name, as the one at hand; axes that it does not mention have one device."""
    sizes = {"data": 1, "fsdp": 1, "tensor": 1, "context": 1} | MESHES[name]
    with jax.set_mesh(jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 4)):
        yield


def shards(name):
    return MESHES[name].get("context", 1)


def dealt_out(tree, length, name, order):
    """Arrays [rows, length, ...] as `order` deals their tokens out; others as they are."""
    index = dealt(length, shards(name), order)
    return jax.tree.map(lambda x: x[:, index] if np.ndim(x) > 1 else x, tree)


def put_back(tree, length, name, order):
    """The inverse of `dealt_out`."""
    index = restored(length, shards(name), order)
    return jax.tree.map(lambda x: np.asarray(x)[:, index] if np.ndim(x) > 1 else np.asarray(x), tree)

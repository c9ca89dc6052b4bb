"""What a sharding may say, and what it comes to on one device."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from rope_jax.attention import Sharding, attend, attend_sharded
from rope_jax.attention.ring import pieces
from rope_jax.attention.sharding import division
from tests.unchecked import unchecked

POSITIONS = jnp.arange(4)[None]
X = jnp.asarray(np.random.default_rng(0).standard_normal((1, 4, 2, 8)), jnp.float32)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"batch": "data"}, TypeError, "`batch` must be a tuple of mesh axes; got 'data'"),
        ({"heads": 3}, TypeError, "`batch`, `heads` and `context` must name mesh axes; got 3"),
        ({"heads": "data"}, ValueError, "`batch`, `heads` and `context` must be different axes"),
        ({"form": "ulysses"}, ValueError, "`form` must be one of all_gather, ring; got 'ulysses'"),
        ({"order": "striped"}, ValueError, "`order` must be one of contiguous, zigzag; got 'striped'"),
    ],
)
def test_what_names_no_axes_is_refused(fields, error, message):
    with unchecked(), pytest.raises(error, match=re.escape(message)):
        Sharding(**fields)


def test_a_sharding_is_hashable_whatever_it_was_written_as():
    assert hash(Sharding(batch=["data"])) == hash(Sharding(batch=("data",)))


def test_one_device_attends_as_without_a_mesh():
    """The very program: nothing of a mesh is in it."""
    tokens: dict[str, Any] = {"q_positions": POSITIONS, "kv_positions": POSITIONS}
    plain = jax.jit(lambda x: attend(x, x, x, **tokens)).lower(X).as_text()
    sharded = jax.jit(lambda x: attend_sharded(x, x, x, **tokens, sharding=Sharding()))
    assert sharded.lower(X).as_text() == plain
    with jax.set_mesh(jax.make_mesh((1, 1), ("data", "context"), axis_types=(AxisType.Auto,) * 2)):
        assert division(Sharding()) is None
        assert "manual" not in sharded.lower(X).as_text()


@pytest.mark.parametrize(("length", "number"), [(4, 1), (255, 1), (256, 2), (384, 3), (1000, 5), (2048, 8), (2**17, 8)])
def test_pieces_divide_and_are_not_too_small(length, number):
    assert pieces(length) == number
    assert number == 1 or (length % number == 0 and length // number >= 128)

"""The TPU kernel, emulated, on the shards of a row: its mask goes by the tokens that a shard was dealt."""

import functools

import jax
import numpy as np
import pytest

from rope_jax.attention import Sharding, attend, attend_sharded, splash
from tests.attention.cases import numbers
from tests.eight_devices.meshes import dealt_out, mesh, put_back

ROWS, SEQ = 2, 480
"""A shard of 120 tokens is no whole number of blocks."""


def documents():
    """No padding, and documents that begin in one shard and end in another."""
    positions = np.tile(np.arange(SEQ, dtype=np.int32) % 200, (ROWS, 1))
    return positions, np.tile(np.arange(SEQ, dtype=np.int32) // 200 + 1, (ROWS, 1))


def result_and_gradients(attention, window, floats, positions, segments, cotangent):
    tokens = {"q_positions": positions, "kv_positions": positions, "q_segments": segments, "kv_segments": segments}

    def run(floats):
        return attention(**floats, **tokens, window=window, softcap=2.0, order="contiguous")

    out, back = jax.vjp(run, floats)
    return out, back(cotangent)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("order", "window"), [("contiguous", None), ("zigzag", None), ("zigzag", 37)])
def test_the_emulated_kernel_gives_what_one_device_gives(order, window, monkeypatch):
    monkeypatch.setattr(splash, "INTERPRET", True)
    rng = np.random.default_rng(0)
    q, k, v, cotangent = (rng.standard_normal((ROWS, SEQ, heads, 8)).astype(np.float32) for heads in (2, 1, 1, 2))
    arguments = ({"q": q, "k": k, "v": v, "sinks": numbers(0.3, -0.2)}, *documents(), cotangent)
    plain = functools.partial(attend, backend="chunked")
    want = jax.jit(functools.partial(result_and_gradients, plain, window))(*arguments)
    sharded = functools.partial(attend_sharded, sharding=Sharding(order=order), backend="splash")
    name = "fsdp x context"
    with mesh(name):
        run = jax.jit(functools.partial(result_and_gradients, sharded, window))
        found = put_back(run(*dealt_out(arguments, SEQ, name, order)), SEQ, name, order)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), found, want)

"""Tokens that nobody would choose, on every backend that runs everywhere, against float64."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import attend, chunked
from tests.attention import reference64
from tests.attention.cases import EVERYWHERE, SEQ, qkv


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 16 tokens: rows of 37 are then three blocks, the last one moved back."""
    monkeypatch.setattr(chunked, "block_side", lambda rows: 16)


@cache
def drawn(seed):
    """Five queries and 37 keys: skips in any order, padding, documents in pieces, a window; and what float64 has."""
    rng = np.random.default_rng(seed)
    case: dict[str, Any] = qkv(queries=5, kv_heads=2, seed=seed) | {"window": np.int32(rng.choice([1, 7, 2**31 - 1]))}
    for side, count in (("q", 5), ("kv", SEQ)):
        padding = rng.random((2, count)) < 0.2
        case[f"{side}_positions"] = np.where(padding, -1 - seed, rng.integers(0, 60, (2, count))).astype(np.int32)
        case[f"{side}_segments"] = rng.integers(0, 3, (2, count)).astype(np.int32)
    cotangent = rng.standard_normal(case["q"].shape).astype(np.float32)
    return case, cotangent, reference64.attention(**case, cotangent=cotangent)


@partial(jax.jit, static_argnames="backend")
def attend_and_gradient(floats, tokens, cotangent, backend):
    out, back = jax.vjp(lambda floats: attend(**floats, **tokens, backend=backend), floats)
    return out, back(cotangent)[0]


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_tokens_of_any_kind_are_attended_as_in_float64(backend):
    empty = 0
    for seed in range(12):
        case, cotangent, (out, lse, grads) = drawn(seed)
        floats = {name: jnp.asarray(case[name]) for name in "qkv"}
        tokens = {name: jnp.asarray(value) for name, value in case.items() if name not in floats}
        found, found_grads = attend_and_gradient(floats, tokens, cotangent, backend)
        np.testing.assert_allclose(found, out, atol=2e-5, rtol=0, err_msg=str(seed))
        for name, grad in found_grads.items():
            np.testing.assert_allclose(grad, grads[name], atol=1e-4, rtol=1e-5, err_msg=f"{name}, {seed}")
        empty += np.sum(np.isneginf(lse))
    assert 100 < empty < lse.size * 12

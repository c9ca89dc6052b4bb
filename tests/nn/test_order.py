"""The order hint through the block and the layer scan: known windows for kernels, the same numbers, clear refusals."""

import dataclasses
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_jax import nn
from rope_jax.attention import splash
from rope_jax.positions import is_traced
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, drawn

# The module, which the package's own names hide.
ATTENTION = importlib.import_module("rope_jax.nn.attention")
MIXED = dataclasses.replace(SMALL, layers=4, pattern="LMG", windows={"L": 4, "M": 2})


def logits(model, order, positions=POSITIONS, **arguments):
    return model(TOKEN_IDS, PLAIN, positions=positions, order=order, **arguments)


def windows_of(config, order, monkeypatch):
    """The windows that `attend` is handed while a forward is traced; "traced" for one that only the program knows."""
    seen = []

    def attend(q, k, v, **arguments):
        assert arguments["order"] == order
        seen.append("traced" if is_traced(arguments["window"]) else arguments["window"])
        return q

    monkeypatch.setattr(ATTENTION, "attend", attend)
    jax.eval_shape(lambda model: logits(model, order), decoder(config))
    return seen


def test_kernels_know_every_window_in_one_scan(monkeypatch):
    """A branch for each window, however many layers have it, and none where layers are alike."""
    assert windows_of(MIXED, "contiguous", monkeypatch) == [4, 2, None]
    assert windows_of(dataclasses.replace(MIXED, layers=12), "increasing", monkeypatch) == [4, 2, None]
    assert windows_of(dataclasses.replace(MIXED, windows={}), "contiguous", monkeypatch) == [None]
    assert windows_of(MIXED, "any", monkeypatch) == ["traced"]


def test_the_order_changes_no_number():
    def loss(config, order):
        graph, state = nnx.split(decoder(config))
        along = np.random.default_rng(1).standard_normal((2, SEQ, 13)).astype(np.float32)

        @jax.jit
        @jax.value_and_grad
        def of(state, positions):
            return jnp.sum(logits(nnx.merge(graph, state), order, positions) * along)

        return of(state, POSITIONS)

    plain, hinted = loss(MIXED, "any"), loss(dataclasses.replace(MIXED, remat=True), "contiguous")
    np.testing.assert_allclose(hinted[0], plain[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), hinted[1], plain[1])


@pytest.mark.slow
def test_the_emulated_kernel_gives_the_same_logits(monkeypatch):
    monkeypatch.setattr(splash, "INTERPRET", True)
    config = dataclasses.replace(SMALL, layers=2, unroll=None)
    known = np.arange(SEQ)[None]
    by_kernel = jax.jit(lambda model: logits(model, "contiguous", known))(
        decoder(dataclasses.replace(config, backend="splash"))
    )
    plain = jax.jit(lambda model: logits(model, "any"))(decoder(config))
    np.testing.assert_allclose(by_kernel, plain, rtol=0, atol=2e-5)


def test_the_block_hands_the_order_on(monkeypatch):
    block = drawn(lambda: nn.RotaryAttention(nn.AttentionConfig(embed=16, heads=2, window=3), rngs=nnx.Rngs(0)))
    found = []

    def attend(q, k, v, **arguments):
        found.append((arguments["order"], arguments["window"]))
        return q

    monkeypatch.setattr(ATTENTION, "attend", attend)
    block(jnp.ones((1, SEQ, 16)), None, positions=POSITIONS, order="contiguous")
    assert found == [("contiguous", 3)]


def test_an_order_that_cannot_hold_is_refused():
    model, jumping = decoder(), np.arange(SEQ)[None] * 2

    def refused(message, call):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()

    contradiction = "`order` must be true of the positions: 'contiguous' means adjacent tokens in steps of 1"
    refused(contradiction, lambda: logits(model, "contiguous", jumping))
    # Known positions are checked in a program, too.
    refused(contradiction, lambda: jax.eval_shape(lambda model: logits(model, "contiguous", jumping), model))
    refused(
        '`order` must be one of any, increasing, contiguous; got "sorted"'.replace('"', "'"),
        lambda: logits(model, "sorted"),
    )
    cached = "`order` must be \"any\" with a cache, whose keys are other tokens than the queries; got 'contiguous'"
    refused(cached, lambda: logits(model, "contiguous", cache=model.empty_cache(2, SEQ)))
    block, x = nn.RotaryAttention(nn.AttentionConfig(embed=16, heads=2), rngs=nnx.Rngs(0)), jnp.ones((2, SEQ, 16))
    cache = nn.KVCache.empty(2, SEQ, 2, 8)
    refused(cached, lambda: block(x, None, positions=POSITIONS, cache=cache, order="contiguous"))


@pytest.mark.parametrize(
    ("order", "windows", "reason"),
    [
        ("any", {}, 'its mask goes by index, which needs order="increasing" or "contiguous"'),
        ("increasing", {"L": 4}, 'only order="contiguous" makes them steps of the index'),
        ("contiguous", {"L": 4}, "it needs a TPU, and the call runs on a cpu"),
    ],
)
def test_a_kernel_that_cannot_serve_says_why(order, windows, reason):
    model = decoder(dataclasses.replace(SMALL, windows=windows, backend="splash"))
    with pytest.raises(ValueError, match=re.escape(reason)):
        jax.eval_shape(lambda model: logits(model, order), model)

"""The TPU kernel, emulated: against float64, and what it refuses."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import attend, splash
from rope_jax.attention.splash import block_side
from tests.attention import reference64
from tests.attention.cases import ARRAYS, SCALES, SEQ, SINKS, both, numbers, packed, positions, qkv
from tests.attention.test_backends import request

LONG = 150
"""Tokens that one block of 128 does not hold and two do not divide."""


@pytest.fixture
def _emulated(monkeypatch):
    monkeypatch.setattr(splash, "INTERPRET", True)


emulated = pytest.mark.usefixtures("_emulated")


def documents():
    """Row 0: two documents of adjacent tokens between padding; row 1: one, padded on the left."""
    segments, rows = np.zeros((2, LONG), int), np.zeros((2, LONG), int)
    for row, start, stop, segment, first in ((0, 5, 90, 3, 0), (0, 97, 150, 1, 7), (1, 40, 150, 2, 0)):
        segments[row, start:stop] = segment
        rows[row, start:stop] = np.arange(first, first + stop - start)
    return both("segments", segments) | both("positions", rows)


def padded():
    """Row 0 with jumps and padded on the left, row 1 padded in the middle and on the right."""
    middle = np.concatenate([np.arange(10), np.full(5, -2), np.arange(10, 27), np.full(5, -1)])
    return both("positions", np.stack([np.maximum(np.arange(SEQ) * 3 - 19, -1), middle]))


def zigzag():
    """What the second of four shards holds, when the sequence is dealt out forwards and then backwards."""
    chunk = np.arange(18)
    return both("positions", np.concatenate([18 + chunk, 6 * 18 + chunk])[None])


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "two blocks, grouped heads": ("increasing", qkv(1, LONG, LONG, 2) | positions(LONG)),
    "window": ("contiguous", qkv(1, LONG, LONG) | positions(LONG) | {"window": 9}),
    "window wider than the row": ("contiguous", qkv() | positions() | {"window": SEQ + 1, "scale": numbers(0.3)[0]}),
    "one key head, wider values, padding": ("increasing", qkv(kv_heads=1, v_dim=12) | padded() | {"sinks": SINKS}),
    "documents in pieces": ("increasing", qkv(kv_heads=2) | packed() | {"softcap": 0.7}),
    "shard in zigzag order": ("increasing", qkv(1, 36, 36) | zigzag()),
    "all at once": (
        "contiguous",
        qkv(2, LONG, LONG, 2) | documents() | {"window": 40, "softcap": 1.5, "sinks": SINKS, "scale": SCALES},
    ),
}


def split(case):
    """Floating arrays, tokens and settings of a case; positions are traced where the tokens are arguments."""
    static = {name: case[name] for name in ("softcap", "window") if name in case}
    floats = {name: jnp.asarray(case[name]) for name in ARRAYS if name in case}
    return floats, {name: jnp.asarray(x) for name, x in case.items() if name not in floats | static}, static


@cache
def expected(name):
    case = CASES[name][1]
    plain = reference64.attention(**case)
    cotangent = np.random.default_rng(1).standard_normal(plain[0].shape).astype(np.float32)
    return *reference64.attention(**case, cotangent=cotangent), cotangent


@emulated
def test_values_are_those_of_float64():
    order, case = CASES["all at once"]
    floats, tokens, static = split(case)
    run = jax.jit(lambda floats, tokens: attend(**floats, **tokens, **static, order=order, backend="splash"))
    np.testing.assert_allclose(run(floats, tokens), expected("all at once")[0], atol=2e-5, rtol=0)


@pytest.mark.slow
@emulated
@pytest.mark.parametrize("name", CASES)
def test_values_log_sum_exp_and_gradients_are_those_of_float64(name):
    order, case = CASES[name]
    want, want_lse, want_grads, cotangent = expected(name)
    floats, tokens, static = split(case)

    @jax.jit
    def run(floats, tokens, cotangent):
        call = partial(attend, **tokens, **static, order=order, backend="splash")
        out, back = jax.vjp(lambda floats: call(**floats), floats)
        return out, back(cotangent)[0]

    out, grads = run(floats, tokens, cotangent)
    np.testing.assert_allclose(out, want, atol=2e-5, rtol=0)
    assert set(grads) == set(floats)
    for argument, grad in grads.items():
        of_float64 = want_grads[argument].sum() if grad.ndim == 0 else want_grads[argument]
        np.testing.assert_allclose(grad, of_float64, atol=1e-4, rtol=1e-5, err_msg=argument)
    known = replace(request(case), order=order)
    np.testing.assert_allclose(jax.jit(lambda: splash.attention(known)[1])(), want_lse, atol=2e-5)


@pytest.mark.slow
@emulated
def test_what_is_not_finite_stays_in_the_rows_that_see_it():
    """A NaN in a padded token touches nothing; one in a key turns the rows that see it NaN, and passes no gradient."""
    order, case = CASES["documents in pieces"]
    floats, tokens, static = split(case)
    early = jnp.zeros_like(floats["q"]).at[0, :9].set(1.0).at[1, :20].set(1.0)

    @jax.jit
    def run(floats):
        call = partial(attend, **tokens, **static, order=order, backend="splash")
        out, back = jax.vjp(lambda floats: call(**floats), floats)
        return out, back(early)[0]

    plain, plain_grads = run(floats)
    # Row 0: token 34 is padding, token 9 opens the second document. Row 1: token 25 lies in another document.
    spoiled = floats | {"k": floats["k"].at[0, 9].set(jnp.nan), "v": floats["v"].at[:, (25, 34)].set(jnp.inf)}
    spoiled["q"] = floats["q"].at[0, 34].set(jnp.nan)
    out, grads = run(spoiled)
    nan = np.zeros((2, SEQ), bool)
    nan[0, 9:26], nan[1, 25:30], nan[1, 34:] = True, True, True
    np.testing.assert_array_equal(np.isnan(out).all(axis=(2, 3)), nan)
    np.testing.assert_allclose(np.where(nan[..., None, None], 0.0, out), np.where(nan[..., None, None], 0.0, plain))
    np.testing.assert_array_equal(out[0, 33:], 0.0)
    for argument, grad in grads.items():
        np.testing.assert_allclose(grad, plain_grads[argument], atol=1e-6, err_msg=argument)


@pytest.mark.slow
@emulated
def test_bfloat16_is_kept():
    case = qkv(kv_heads=2) | positions()
    short = {name: jnp.asarray(case[name], jnp.bfloat16) for name in "qkv"}
    exact = reference64.attention(**case | {name: np.asarray(x, np.float64) for name, x in short.items()})[0]
    tokens: dict[str, Any] = {name: jnp.asarray(x) for name, x in positions().items()}
    out = jax.jit(lambda short: attend(**short, **tokens, order="contiguous", backend="splash"))(short)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), exact, atol=2e-2)


@emulated
def test_log_sum_exp_has_no_gradient():
    known = replace(request(CASES["documents in pieces"][1]), order="increasing")

    def total(q, part):
        return jnp.sum(jnp.nan_to_num(splash.attention(replace(known, q=q))[part]))

    assert jax.eval_shape(jax.grad(partial(total, part=0)), known.q).shape == known.q.shape
    with pytest.raises(NotImplementedError, match="log-sum-exp of a kernel must not be differentiated"):
        jax.eval_shape(jax.grad(partial(total, part=1)), known.q)


Q = jnp.ones((1, 6, 4, 8))
SIX = jnp.arange(6)[None]
REFUSED = [
    ({"order": "any"}, 'its mask goes by index, which needs order="increasing" or "contiguous"'),
    ({"slopes": jnp.ones(4)}, "it has no logit that falls with the distance"),
    ({"order": "increasing", "window": 2}, 'only order="contiguous" makes them steps of the index'),
    ({name: Q.astype(jnp.float16) for name in "qkv"}, "it computes in float32 and bfloat16 only"),
]


def call(**changes):
    tokens = {"q_positions": SIX, "kv_positions": SIX, "order": "contiguous", "backend": "splash"}
    return attend(**{"q": Q, "k": Q, "v": Q} | tokens | changes)  # type: ignore[arg-type]


@emulated
@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda x: "" if isinstance(x, str) else "-".join(x))
def test_what_the_kernel_cannot_say_is_refused(changes, message):
    with pytest.raises(ValueError, match="`backend` must serve what is asked of it; got 'splash'") as error:
        call(**changes)
    assert message in str(error.value)


@emulated
def test_a_window_known_only_later_is_refused():
    with pytest.raises(ValueError, match="needs a `window` that is known then"):
        jax.eval_shape(lambda window: call(window=window), jnp.int32(3))
    known = jnp.int32(3)
    assert jax.eval_shape(lambda q: call(q=q, window=known), Q).shape == Q.shape


@emulated
def test_traced_positions_of_a_cache_are_refused():
    with pytest.raises(ValueError, match="needs queries and keys that are the same tokens"):
        jax.eval_shape(lambda rows: call(q=Q[:, 5:], q_positions=rows[:, 5:], kv_positions=rows), SIX)


@emulated
def test_a_row_longer_than_the_tables_allow_is_refused(monkeypatch):
    monkeypatch.setattr(splash, "LONGEST", 5)
    with pytest.raises(ValueError, match="it takes rows of 5 tokens at most"):
        call()


@emulated
def test_wide_indices_are_refused():
    with jax.enable_x64(True), pytest.raises(ValueError, match="jax_enable_x64 must be off"):
        call()


def test_another_platform_is_refused():
    with pytest.raises(ValueError, match="it needs a TPU, and the call runs on a cpu"):
        call()


@pytest.mark.parametrize(
    ("seq", "side"), [(1, 128), (128, 128), (130, 128), (456, 512), (448, 128), (600, 128), (700, 256), (8192, 512)]
)
def test_blocks_are_as_large_as_an_eighth_of_padding_allows(seq, side):
    assert block_side(seq) == side
    assert side == 128 or -seq % side <= seq / 8

"""cuDNN's attention without a GPU: what it is told, the result around it, and what it refuses.

XLA's implementation stands in for cuDNN's, in float32: both take the same arguments and mean the same by them.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import attend, cudnn, kernels
from tests.attention import reference64
from tests.attention.cases import ARRAYS, SCALES, SEQ, both, numbers, positions, qkv
from tests.attention.test_backends import request


@pytest.fixture
def told(monkeypatch):
    """Pretends that there is a GPU, and lists what `jax.nn.dot_product_attention` is told."""
    calls: list[dict[str, Any]] = []
    plain = jax.nn.dot_product_attention

    def stand_in(q, k, v, *, implementation, **options):
        calls.append({"implementation": implementation, "dtype": str(q.dtype), **options})
        with jax.numpy_dtype_promotion("standard"):
            return plain(q, k, v, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr(kernels, "platform", lambda request: "gpu")
    monkeypatch.setattr(kernels, "compute_capability", lambda: (9, 0))
    return calls


@pytest.fixture
def _in_float32(monkeypatch):
    monkeypatch.setattr(cudnn, "HALF", (jnp.float32,))


def padded(window):
    """Row 0 padded on the left, row 1 on the right; without a window with jumps and padding in the middle as well."""
    left = np.maximum(np.arange(SEQ) - 19, -1)
    right = np.where(np.arange(SEQ) < 30, np.arange(100, 100 + SEQ), -3)
    if not window:
        left, right = left * 2, np.where(np.arange(SEQ) % 5 == 2, -1, right)
    return both("positions", np.stack([left, right]))


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": ("contiguous", qkv(kv_heads=2) | positions()),
    "window": ("contiguous", qkv() | positions(rows=2) | {"window": 9}),
    "padding": ("increasing", qkv(kv_heads=1) | padded(window=False) | {"scale": numbers(0.3)[0]}),
    "padding, window": ("contiguous", qkv() | padded(window=True) | {"window": 6, "scale": SCALES}),
    "a row of padding": ("increasing", qkv() | both("positions", np.stack([np.arange(SEQ), np.full(SEQ, -1)]))),
}


@pytest.mark.usefixtures("told", "_in_float32")
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_float64(name):
    order, case = CASES[name]
    plain = reference64.attention(**case)
    cotangent = np.random.default_rng(1).standard_normal(plain[0].shape).astype(np.float32)
    want, lse, want_grads = reference64.attention(**case, cotangent=cotangent)
    floats = {argument: jnp.asarray(case[argument]) for argument in ARRAYS if argument in case}
    tokens: dict[str, Any] = {argument: jnp.asarray(x) for argument, x in case.items() if "positions" in argument}

    @jax.jit
    def run(floats, tokens, cotangent):
        def call(floats):
            return attend(**floats, **tokens, window=case.get("window"), order=order, backend="cudnn")

        out, back = jax.vjp(call, floats)
        return out, back(cotangent)[0]

    out, grads = run(floats, tokens, cotangent)
    np.testing.assert_allclose(out, want, atol=2e-5, rtol=0)
    assert set(grads) == set(floats)
    for argument, grad in grads.items():
        of_float64 = want_grads[argument].sum() if grad.ndim == 0 else want_grads[argument]
        np.testing.assert_allclose(grad, of_float64, atol=1e-4, rtol=1e-5, err_msg=argument)
    known = replace(request(case), order=order)
    found, found_lse = jax.jit(lambda: cudnn.attention(known))()
    np.testing.assert_allclose(found, want, atol=2e-5, rtol=0)
    np.testing.assert_allclose(found_lse, lse, atol=2e-5)


@pytest.mark.usefixtures("told", "_in_float32")
def test_what_is_not_finite_stays_in_the_rows_that_see_it():
    _, case = CASES["padding, window"]
    tokens: dict[str, Any] = {name: jnp.asarray(case[name]) for name in ("q_positions", "kv_positions")}
    q, k, v = (jnp.asarray(case[name]) for name in "qkv")
    early = jnp.zeros_like(q).at[1, :9].set(1.0)

    @jax.jit
    def run(q, k, v):
        def call(q, k, v):
            return attend(q, k, v, **tokens, window=6, order="contiguous", backend="cudnn")

        out, back = jax.vjp(call, q, k, v)
        return out, back(early)

    plain, plain_grads = run(q, k, v)
    # Tokens 0 of row 0 and 36 of row 1 are padding.
    spoiled = q.at[0, 0].set(jnp.nan), k.at[1, (9, 36)].set(jnp.inf), v.at[0, 0].set(jnp.nan)
    out, grads = run(*spoiled)
    nan = np.zeros((2, SEQ), bool)
    nan[1, 9:15] = True
    np.testing.assert_array_equal(np.isnan(out).all(axis=(2, 3)), nan)
    np.testing.assert_allclose(np.where(nan[..., None, None], 0.0, out), np.where(nan[..., None, None], 0.0, plain))
    for grad, plain_grad in zip(grads, plain_grads, strict=True):
        np.testing.assert_allclose(grad, plain_grad, atol=1e-6)


Q = jnp.ones((1, 6, 4, 8), jnp.bfloat16)
SIX = jnp.arange(6)[None]


def call(**changes):
    tokens = {"q_positions": SIX, "kv_positions": SIX, "order": "contiguous", "backend": "cudnn"}
    return attend(**{"q": Q, "k": Q, "v": Q} | tokens | changes)  # type: ignore[arg-type]


def test_what_cudnn_is_told(told):
    assert call(window=3, scale=0.5).dtype == jnp.bfloat16
    first = {"implementation": "cudnn", "dtype": "bfloat16", "is_causal": True, "scale": 0.5}
    assert told[0] == first | {"local_window_size": (2, 0)}
    assert told[1] == first | {"local_window_size": (2, 0), "return_residual": True}
    call(scale=jnp.float32(0.5))
    assert told[2] == first | {"local_window_size": None, "scale": 1.0}


@pytest.mark.usefixtures("told")
def test_log_sum_exp_has_no_gradient():
    known = replace(request({"q": Q, "k": Q, "v": Q, "q_positions": SIX, "kv_positions": SIX}), order="increasing")
    with pytest.raises(NotImplementedError, match="log-sum-exp of a kernel must not be differentiated"):
        jax.eval_shape(jax.grad(lambda q: jnp.sum(cudnn.attention(replace(known, q=q))[1])), known.q)


REFUSED = [
    ({"order": "any"}, 'its mask goes by index, which needs order="increasing" or "contiguous"'),
    ({"order": "increasing", "window": 2}, 'only order="contiguous" makes them steps of the index'),
    ({"slopes": jnp.ones(4)}, "it has no logit that falls with the distance"),
    ({name: Q.astype(jnp.float32) for name in "qkv"}, "it computes in bfloat16 and float16 only"),
    ({"q_segments": SIX * 0 + 1, "kv_segments": SIX * 0 + 1}, "its mask has no segments"),
    ({"softcap": 30.0}, "a softcap acts on the logits before the softmax"),
    ({"sinks": jnp.ones(4)}, "has no logit beside the keys for a sink"),
    ({"v": Q[..., :4]}, "needs values as wide as the keys"),
    (dict.fromkeys("qkv", Q[..., :4]), "it needs heads whose width is a multiple of 8"),
    (dict.fromkeys("qkv", jnp.tile(Q, 33)), "on this GPU its heads are at most 256 wide"),
]


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda x: "" if isinstance(x, str) else "-".join(x))
def test_what_cudnn_cannot_be_told_is_refused(changes, message):
    with pytest.raises(ValueError, match="`backend` must serve what is asked of it; got 'cudnn'") as error:
        call(**changes)
    assert message in str(error.value)


@pytest.mark.usefixtures("told")
def test_what_the_gpu_cannot_do_is_refused(monkeypatch):
    wide = {name: jnp.tile(Q, 17) for name in "qkv"}
    assert call(**wide).shape == wide["q"].shape
    for capability, message in (((8, 6), "at most 128 wide"), ((7, 5), "8.0 or more"), (None, "8.0 or more")):
        monkeypatch.setattr(kernels, "compute_capability", lambda capability=capability: capability)
        with pytest.raises(ValueError, match=message):
            call(**wide)


def test_another_platform_is_refused():
    with pytest.raises(ValueError, match="it needs an NVIDIA GPU, and the call runs on a cpu"):
        call()

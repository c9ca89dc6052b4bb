"""Every backend that runs everywhere against float64, values and gradients, and under the transformations of jax."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS, attend, chunked
from rope_jax.attention.dispatch import SMALL, chosen
from tests.attention import reference64
from tests.attention.cases import ARRAYS, CASES, EVERYWHERE, positions, qkv

NAMES = EVERYWHERE
XLA_CANNOT = ("one key head, wider values", "softcap", "sinks", "all at once")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 16 tokens: rows of 37 are then three blocks, the last one moved back."""
    monkeypatch.setattr(chunked, "block_side", lambda rows: 16)


@cache
def expected(name):
    case = CASES[name]
    plain = reference64.attention(**case)
    cotangent = np.random.default_rng(1).standard_normal(plain[0].shape).astype(np.float32)
    return *reference64.attention(**case, cotangent=cotangent), cotangent


def with_gradients(case, cotangent, backend):
    """Result and gradients of all floating arrays; positions, segments and window are traced."""
    static = {name: case[name] for name in ("softcap",) if name in case}
    if isinstance(case.get("window"), int):
        static["window"] = case["window"]
    floats = {name: jnp.asarray(case[name]) for name in ARRAYS if name in case}
    tokens: dict[str, Any] = {name: jnp.asarray(value) for name, value in case.items() if name not in floats | static}

    @jax.jit
    def run(floats, tokens, cotangent):
        out, back = jax.vjp(lambda floats: attend(**floats, **tokens, **static, backend=backend), floats)
        return out, back(cotangent)[0]

    return run(floats, tokens, jnp.asarray(cotangent))


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_float64(name, backend):
    out, _, grads, cotangent = expected(name)
    if backend == "xla" and name in XLA_CANNOT:
        pytest.skip("refused, see test_validation")
    found, found_grads = with_gradients(CASES[name], cotangent, backend)
    np.testing.assert_allclose(found, out, atol=2e-5, rtol=0)
    assert set(found_grads) == set(ARRAYS) & set(CASES[name])
    for argument, grad in found_grads.items():
        want = grads[argument].sum() if grad.ndim == 0 else grads[argument]
        np.testing.assert_allclose(grad, want, atol=1e-4, rtol=1e-5, err_msg=argument)


def test_gradients_of_the_float64_reference_are_its_slopes():
    case, (_, _, grads, cotangent) = CASES["all at once"], expected("all at once")
    rng, step = np.random.default_rng(2), 1e-6
    for argument in ARRAYS:
        direction = rng.standard_normal(case[argument].shape)
        ends = [
            reference64.attention(**case | {argument: np.float64(case[argument]) + sign * step * direction})[0]
            for sign in (1, -1)
        ]
        slope = np.sum((ends[0] - ends[1]) / (2 * step) * cotangent)
        np.testing.assert_allclose(np.sum(grads[argument] * direction), slope, rtol=1e-6, err_msg=argument)


def request(case):
    """The checked request behind a call of `attend`."""
    seen = []

    class Listener:
        refuses = staticmethod(lambda request: None)

        @staticmethod
        def attention(request):
            seen.append(request)
            return jnp.zeros((*request.q.shape[:3], request.v.shape[3]), request.q.dtype), None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rope_jax.attention.dispatch.chosen", lambda request, backend: Listener)
        arguments: dict[str, Any] = {name: x if name == "softcap" else jnp.asarray(x) for name, x in case.items()}
        attend(**arguments)
    return seen[0]


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("name", ["padding", "sinks"])
def test_log_sum_exp_covers_visible_keys_and_sink(name, backend):
    case = request(CASES[name])
    if BACKENDS[backend].refuses(case):
        pytest.skip("refused, see test_validation")
    lse = jax.jit(lambda: BACKENDS[backend].attention(case)[1])()
    np.testing.assert_allclose(lse, expected(name)[1], atol=2e-5)


def test_log_sum_exp_has_the_gradient_of_the_plain_formula():
    floats = {name: jnp.asarray(CASES["all at once"][name]) for name in ARRAYS}
    case = request(CASES["all at once"])

    def total(floats, backend):
        out, lse = backend.attention(replace(case, **floats))
        return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(lse), lse, 0.0))) + jnp.sum(out)

    plain, found = (
        jax.jit(jax.grad(partial(total, backend=BACKENDS[name])))(floats) for name in ("reference", "chunked")
    )
    for argument in ARRAYS:
        np.testing.assert_allclose(found[argument], plain[argument], atol=1e-4, rtol=1e-5, err_msg=argument)


@pytest.mark.parametrize("backend", NAMES)
def test_bfloat16_is_kept_and_summed_in_float32(backend):
    case = qkv(kv_heads=2) | positions()
    short: dict[str, Any] = {name: jnp.asarray(case[name], jnp.bfloat16) for name in "qkv"}
    exact = reference64.attention(**case | {name: np.asarray(x, np.float64) for name, x in short.items()})[0]
    tokens: dict[str, Any] = {name: jnp.asarray(x) for name, x in positions().items()}

    @jax.jit
    def run(short):
        out, back = jax.vjp(lambda short: attend(**short, **tokens, backend=backend), short)
        return out, back(out)[0]

    out, grads = run(short)
    assert out.dtype == jnp.bfloat16
    # The only rounding is that of the result.
    np.testing.assert_allclose(np.asarray(out, np.float64), exact, atol=1e-6, rtol=2**-8)
    assert {grad.dtype for grad in grads.values()} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("backend", NAMES)
def test_known_positions_give_what_traced_ones_give(backend):
    case: dict[str, Any] = {name: jnp.asarray(x) for name, x in CASES["out of order, traced window"].items()}
    call = partial(attend, backend=backend)
    np.testing.assert_allclose(call(**case), jax.jit(call)(**case), atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "xla"])
def test_forward_mode_is_the_transpose_of_reverse_mode(backend):
    case = CASES["packed documents"]
    floats = {name: jnp.asarray(case[name]) for name in "qkv"}
    tokens: dict[str, Any] = {name: jnp.asarray(x) for name, x in case.items() if name not in floats}
    tangent = jax.tree.map(jnp.cos, floats)
    cotangent = expected("packed documents")[3]
    run = jax.jit(partial(jax.jvp, lambda floats: attend(**floats, **tokens, backend=backend)))
    _, moved = run((floats,), (tangent,))
    want = sum(np.sum(expected("packed documents")[2][name] * np.asarray(tangent[name])) for name in "qkv")
    np.testing.assert_allclose(np.sum(moved * cotangent), want, rtol=1e-4)


def test_chunked_has_no_forward_mode():
    case: dict[str, Any] = {name: jnp.asarray(x) for name, x in CASES["causal"].items()}
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: attend(**case | {"q": q}, backend="chunked"), (case["q"],), (case["q"],))


def test_chunked_under_scan_remat_and_vmap():
    """Two layers, recomputed in the backward pass, window and all as data; and a mapped axis in front."""
    case = CASES["packed documents"]
    tokens: dict[str, Any] = {name: jnp.asarray(x) for name, x in case.items() if name not in "qkv"}
    windows = jnp.asarray([5, 2**31 - 1], jnp.int32)
    x = jnp.asarray(0.3 * case["q"])

    def loss(x, backend, wrap):
        @wrap
        def layer(x, window):
            return x + attend(x, x, x, **tokens, window=window, backend=backend), None

        return jnp.sum(jnp.sin(jax.lax.scan(layer, x, windows)[0]))

    run = jax.jit(jax.value_and_grad(loss), static_argnums=(1, 2))
    value, grad = run(x, "reference", lambda layer: layer)
    found, found_grad = run(x, "chunked", jax.checkpoint)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    np.testing.assert_allclose(found_grad, grad, atol=1e-4)
    mapped = jax.jit(jax.vmap(jax.grad(partial(loss, backend="chunked", wrap=jax.checkpoint))))(jnp.stack([x, -x]))
    np.testing.assert_allclose(mapped[0], grad, atol=1e-4)


def temporary_bytes(seq, gradient):
    shapes = {name: jax.ShapeDtypeStruct((1, seq, 2, 16), jnp.float32) for name in "qkv"}
    tokens = {name: jax.ShapeDtypeStruct((1, seq), jnp.int32) for name in positions()}

    def total(floats, tokens):
        return jnp.sum(attend(**floats, **tokens, backend="chunked"))

    run = jax.jit(jax.grad(total) if gradient else total)
    memory = run.lower(shapes, tokens).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize("gradient", [False, True])
def test_chunked_memory_grows_with_the_length_and_not_with_its_square(gradient, monkeypatch):
    """At a length that the blocks do not divide, where padding would copy every array."""
    monkeypatch.setattr(chunked, "block_side", lambda rows: 64)
    seq = 4001
    matrix = 4 * 2 * seq * seq
    assert temporary_bytes(seq, gradient) < matrix / 32
    assert temporary_bytes(2 * seq, gradient) < 2.2 * temporary_bytes(seq, gradient)


def test_auto_leaves_the_matrix_behind_where_it_is_large():
    small, capped = request(CASES["causal"]), request(CASES["softcap"])
    assert chosen(small, "auto") is BACKENDS["xla"]
    assert chosen(capped, "auto") is BACKENDS["reference"]
    side = int((SMALL / 4) ** 0.5)
    long = jnp.zeros((1, side + 1, 4, 2)), jnp.zeros((1, side + 1, 4, 2)), jnp.zeros((1, side + 1, 4, 2))
    assert chosen(request(dict(zip("qkv", long, strict=True)) | positions(side + 1)), "auto") is BACKENDS["chunked"]

"""What causal attention by positions is, stated as facts that anyone can check."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.attention import chunked
from tests.attention.cases import EVERYWHERE

BATCH, SEQ, HEADS, HEAD_DIM = 2, 12, 2, 8
RNG = np.random.default_rng(0)
Q, K, V = (jnp.asarray(RNG.standard_normal((BATCH, SEQ, HEADS, HEAD_DIM)), jnp.float32) for _ in range(3))
RANGE = jnp.arange(SEQ)[None]
every_backend = pytest.mark.parametrize("backend", EVERYWHERE)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 5 tokens, so that twelve are three blocks."""
    monkeypatch.setattr(chunked, "block_side", lambda rows: 5)


@partial(jax.jit, static_argnames=("backend", "softcap"))
def attend(q, k, v, positions, segments=None, *, backend, kv_positions=None, **changes):
    kv_positions = positions if kv_positions is None else kv_positions
    tokens = {"q_positions": positions, "kv_positions": kv_positions, "q_segments": segments, "kv_segments": segments}
    return rj.attend(q, k, v, **tokens, backend=backend, **changes)


@partial(jax.jit, static_argnames="backend")
def attend_and_gradient(q, k, v, positions, segments, cotangent, backend):
    out, back = jax.vjp(lambda q, k, v: attend(q, k, v, positions, segments, backend=backend), q, k, v)
    return out, back(cotangent)


@jax.jit
def rotated(x, positions):
    return rj.rotate(x, rj.rotary_table(rj.geometric_schedule(HEAD_DIM), positions))


@every_backend
def test_without_rotation_a_query_that_sees_all_keys_does_not_know_their_order(backend):
    """All queries stand after all keys: nothing but a rotation could tell the keys apart."""
    order = RNG.permutation(SEQ)
    plain = attend(Q, K, V, RANGE + SEQ, kv_positions=RANGE, backend=backend)
    shuffled = attend(Q, K[:, order], V[:, order], RANGE + SEQ, kv_positions=RANGE, backend=backend)
    np.testing.assert_allclose(shuffled, plain, atol=1e-6)
    moved = attend(Q[:, order], K, V, RANGE + SEQ, kv_positions=RANGE, backend=backend)
    np.testing.assert_allclose(moved, plain[:, order], atol=1e-6)


@every_backend
def test_with_rotation_the_order_of_the_keys_matters(backend):
    order = RNG.permutation(SEQ)
    q = rotated(Q, RANGE + SEQ)
    plain = attend(q, rotated(K, RANGE), V, RANGE + SEQ, kv_positions=RANGE, backend=backend)
    shuffled = attend(q, rotated(K[:, order], RANGE), V[:, order], RANGE + SEQ, kv_positions=RANGE, backend=backend)
    assert np.max(np.abs(shuffled - plain)) > 0.05


@every_backend
def test_the_mask_comes_from_positions_and_not_from_the_rotation(backend):
    """Keys rotated for one place and masked as if in another: only what `attend` is told decides who is seen."""
    turned = rotated(K, RANGE + 1000)
    changed = attend(Q, turned, V.at[:, 7].set(99.0), RANGE, backend=backend)
    plain = attend(Q, turned, V, RANGE, backend=backend)
    np.testing.assert_array_equal(changed[:, :7], plain[:, :7])
    assert np.all(np.any(changed[:, 7:] != plain[:, 7:], axis=(2, 3)))


@every_backend
def test_tokens_may_come_in_any_order_with_their_positions(backend):
    order = RNG.permutation(SEQ)
    plain = attend(Q, K, V, RANGE, backend=backend)
    shuffled = attend(Q[:, order], K[:, order], V[:, order], RANGE[:, order], backend=backend)
    np.testing.assert_allclose(shuffled, plain[:, order], atol=1e-6)


@every_backend
def test_shifting_every_position_changes_nothing(backend):
    plain = attend(Q, K, V, RANGE, backend=backend, window=4)
    np.testing.assert_array_equal(attend(Q, K, V, RANGE + 10**9, backend=backend, window=4), plain)


@every_backend
def test_fewer_queries_than_keys_are_the_last_rows_of_the_whole(backend):
    """Causal by position: the first of three last queries sees ten keys, not one."""
    whole = attend(Q, K, V, RANGE, backend=backend)
    last = attend(Q[:, 9:], K, V, RANGE[:, 9:], kv_positions=RANGE, backend=backend)
    np.testing.assert_allclose(last, whole[:, 9:], atol=1e-6)
    by_index = jax.nn.dot_product_attention(Q[:, 9:], K, V, is_causal=True)
    assert np.max(np.abs(by_index - whole[:, 9:])) > 0.1


@every_backend
def test_a_window_of_one_copies_the_values(backend):
    np.testing.assert_allclose(attend(Q, K, V, RANGE, backend=backend, window=1), V, atol=1e-6)


@every_backend
def test_documents_packed_into_a_row_are_alone(backend):
    """Twice the same document: the same results, and those of the second do not depend on the first."""
    half = SEQ // 2
    q, k, v = (jnp.concatenate([x[:, :half]] * 2, axis=1) for x in (Q, K, V))
    positions = jnp.concatenate([RANGE[:, :half]] * 2, axis=1)
    segments = jnp.repeat(jnp.asarray([[1, 2]]), half, axis=1)
    out = attend(q, k, v, positions, segments, backend=backend)
    np.testing.assert_allclose(out[:, :half], out[:, half:], atol=1e-6)
    other_k, other_v = k.at[:, :half].multiply(-3.0), v.at[:, :half].add(5.0)
    changed = attend(q, other_k, other_v, positions, segments, backend=backend)
    np.testing.assert_array_equal(changed[:, half:], out[:, half:])
    # Positions that start again do not isolate by themselves.
    leaking = attend(q, other_k, other_v, positions, jnp.ones_like(segments), backend=backend)
    assert np.max(np.abs(leaking[:, half:] - out[:, half:])) > 0.5


ONE_SEGMENT = jnp.ones((BATCH, SEQ), jnp.int32)
SECOND_ROW_MASKED = {
    "negative positions": (jnp.concatenate([RANGE, jnp.full_like(RANGE, -1)]), ONE_SEGMENT),
    "segment 0": (jnp.concatenate([RANGE, RANGE]), jnp.concatenate([jnp.ones_like(RANGE), jnp.zeros_like(RANGE)])),
}


@every_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", SECOND_ROW_MASKED)
def test_rows_that_see_nothing_are_zero_and_pass_no_gradient(how, dtype, backend):
    positions, segments = SECOND_ROW_MASKED[how]
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    # The masked row holds what uninitialised memory may hold, and the loss reads it: everything stays finite.
    spoiled = [x.at[1, 3].set(jnp.nan).at[1, 5].set(jnp.inf) for x in (q, k, v)]
    out, grads = attend_and_gradient(*spoiled, positions, segments, jnp.ones_like(q), backend)
    twice = (jnp.concatenate([x[:1], x[:1]]) for x in (q, k, v))
    alone = attend_and_gradient(*twice, jnp.concatenate([RANGE, RANGE]), ONE_SEGMENT, jnp.ones_like(q), backend)
    assert out.dtype == q.dtype
    np.testing.assert_array_equal(out[1], jnp.zeros_like(out[1]))
    atol = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(np.float32(out[:1]), np.float32(alone[0][:1]), rtol=0, atol=atol)
    for grad, grad_alone in zip(grads, alone[1], strict=True):
        np.testing.assert_array_equal(grad[1], jnp.zeros_like(grad[1]))
        np.testing.assert_allclose(np.float32(grad[:1]), np.float32(grad_alone[:1]), rtol=0, atol=atol)


@every_backend
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["k", "v", "k and v"])
def test_what_a_masked_key_holds_never_leaks(where, value, backend):
    """Token 7 is spoiled: rows before it stay what they were, rows that see it say so, gradients of the others too."""
    k = K.at[:, 7].set(value) if "k" in where else K
    v = V.at[:, 7].set(value) if "v" in where else V
    before, rows = jnp.zeros_like(Q).at[:, :7].set(1.0), jnp.concatenate([RANGE, RANGE])
    plain, plain_grads = attend_and_gradient(Q, K, V, rows, ONE_SEGMENT, before, backend)
    out, grads = attend_and_gradient(Q, k, v, rows, ONE_SEGMENT, before, backend)
    np.testing.assert_allclose(out[:, :7], plain[:, :7], atol=1e-6)
    assert np.all(np.isnan(out[:, 7:]))
    for grad, plain_grad in zip(grads, plain_grads, strict=True):
        np.testing.assert_allclose(grad, plain_grad, atol=1e-5)


@every_backend
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_is_nan_in_every_head(value, backend):
    """One channel of one head of token 7: all its heads say so, and nothing else does, gradients included."""
    q, rows = Q.at[0, 7, 0, 0].set(value), jnp.concatenate([RANGE, RANGE])
    cotangent = jnp.ones_like(Q).at[0, 7].set(0.0)
    plain, plain_grads = attend_and_gradient(Q, K, V, rows, ONE_SEGMENT, cotangent, backend)
    for loss in (cotangent, jnp.ones_like(Q)):
        out, grads = attend_and_gradient(q, K, V, rows, ONE_SEGMENT, loss, backend)
        assert np.all(np.isnan(out[0, 7]))
        np.testing.assert_allclose(out.at[0, 7].set(0.0), plain.at[0, 7].set(0.0), atol=1e-6)
        for grad, plain_grad in zip(grads, plain_grads, strict=True):
            np.testing.assert_allclose(grad, plain_grad, atol=1e-5)


@every_backend
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_infinite_query_whose_logits_all_have_one_sign_is_nan(sign, backend):
    ones = jnp.ones((1, 2, 1, HEAD_DIM))
    out = attend(ones.at[0, 1].set(sign * jnp.inf), ones, ones, RANGE[:, :2], backend=backend)
    np.testing.assert_array_equal(out[0, 0], ones[0, 0])
    assert np.all(np.isnan(out[0, 1]))


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_padded_query_with_a_sink_spoils_no_gradient(backend):
    """It sees nothing and is zero; its sink alone makes its log-sum-exp finite."""
    positions = jnp.concatenate([RANGE, RANGE]).at[:, 7].set(-1)

    @jax.jit
    def gradient(q, k, v, sinks):
        def total(q, k, v, sinks):
            return jnp.sum(jnp.cos(attend(q, k, v, positions, backend=backend, sinks=sinks, softcap=2.0)))

        return jax.grad(total, argnums=(0, 1, 2, 3))(q, k, v, sinks)

    sinks = jnp.zeros(HEADS)
    spoiled = gradient(Q.at[:, 7].set(jnp.nan), K, V, sinks)
    for grad, plain in zip(spoiled, gradient(Q, K, V, sinks), strict=True):
        np.testing.assert_allclose(grad, plain, atol=1e-6)


@every_backend
def test_a_sink_takes_weight_and_gives_nothing(backend):
    if backend == "xla":
        pytest.skip("refused, see test_validation")
    plain = attend(Q, K, V, RANGE, backend=backend)
    tiny = attend(Q, K, V, RANGE, backend=backend, sinks=jnp.full(HEADS, -50.0))
    np.testing.assert_allclose(tiny, plain, atol=1e-6)
    large = attend(Q, K, V, RANGE, backend=backend, sinks=jnp.full(HEADS, 50.0))
    np.testing.assert_allclose(large, jnp.zeros_like(large), atol=1e-6)


@every_backend
def test_a_softcap_far_above_the_logits_changes_nothing(backend):
    if backend == "xla":
        pytest.skip("refused, see test_validation")
    plain = attend(Q, K, V, RANGE, backend=backend)
    np.testing.assert_allclose(attend(Q, K, V, RANGE, backend=backend, softcap=1e4), plain, atol=1e-5)
    assert np.max(np.abs(attend(Q, K, V, RANGE, backend=backend, softcap=0.1) - plain)) > 0.05

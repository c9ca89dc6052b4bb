"""Regions: parts of the pairs, each turned its own way, that together are one softmax."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from rope_jax.attention import BACKENDS, Region, chunked
from rope_jax.attention import regions as regions_module
from rope_jax.attention.base import Band, Request
from rope_jax.attention.blocks import blocks, meetings
from rope_jax.attention.regions import merged
from tests.attention import reference64
from tests.attention.cases import CASES, positions, qkv
from tests.attention.reference64 import visible_keys
from tests.unchecked import unchecked

BATCH, SEQ, HEADS, HEAD_DIM = 2, 12, 2, 8
RNG = np.random.default_rng(0)
Q, K, V = (jnp.asarray(RNG.standard_normal((BATCH, SEQ, HEADS, HEAD_DIM)), jnp.float32) for _ in range(3))
RANGE = jnp.arange(SEQ)[None]
SCHEDULE = rj.geometric_schedule(8, theta=100.0)
TABLE, SLOW = (rj.rotary_table(SCHEDULE, p) for p in (RANGE, RANGE // 3))
NEAR = Region(q_table=TABLE, kv_table=TABLE, high=5)
FAR = Region(q_table=SLOW, kv_table=SLOW, low=5)
SERVING = ("reference", "chunked")
every_backend = pytest.mark.parametrize("backend", SERVING)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 5 tokens, so that twelve are three blocks."""
    monkeypatch.setattr(chunked, "block_side", lambda rows: 5)


@partial(jax.jit, static_argnames=("backend", "softcap"))
def attend(q, k, v, positions=RANGE, *, backend, **changes):
    return rj.attend(q, k, v, q_positions=positions, kv_positions=positions, backend=backend, **changes)


@partial(jax.jit, static_argnames="backend")
def attend_and_gradient(q, k, v, positions, cotangent, regions, backend):
    out, back = jax.vjp(lambda q, k, v: attend(q, k, v, positions, regions=regions, backend=backend), q, k, v)
    return out, back(cotangent)


@every_backend
@pytest.mark.parametrize("name", ["grouped heads", "padding", "queries fewer than keys", "all at once"])
def test_parts_of_one_rotation_are_the_whole(name, backend):
    """Three regions without a turn: what float64 has for the plain case, sinks, cap, slopes and all."""
    case = CASES[name]
    parts = tuple(Region(q_table=None, kv_table=None, low=low, high=high) for low, high in ((0, 2), (2, 9), (9, None)))
    static = {"softcap": case["softcap"]} if "softcap" in case else {}
    arrays: dict[str, Any] = {x: jnp.asarray(value) for x, value in case.items() if x not in static}
    out = jax.jit(lambda arrays: rj.attend(**arrays, **static, regions=parts, backend=backend))(arrays)
    np.testing.assert_allclose(out, reference64.attention(**case)[0], atol=2e-5, rtol=0)


@every_backend
def test_a_gap_between_regions_is_a_mask(backend):
    turned = (rj.rotate(x, TABLE) for x in (Q, K))
    want = attend(*turned, V, window=5, backend=backend)
    np.testing.assert_allclose(attend(Q, K, V, regions=(NEAR,), backend=backend), want, atol=2e-6)


@every_backend
def test_a_window_of_the_call_holds_in_all_regions(backend):
    want = attend(Q, K, V, window=4, regions=(NEAR,), backend=backend)
    np.testing.assert_allclose(attend(Q, K, V, window=4, regions=(NEAR, FAR), backend=backend), want, atol=2e-6)
    assert np.max(np.abs(attend(Q, K, V, regions=(NEAR, FAR), backend=backend) - want)) > 0.01


def test_the_merged_log_sum_exp_counts_a_sink_once():
    outs = jnp.asarray(RNG.standard_normal((3, 1, 2, 1, 4)), jnp.float32)
    sums = jnp.asarray([[[1.0], [-np.inf]], [[-2.0], [-np.inf]], [[0.5], [-np.inf]]])[:, None]
    parts = list(zip(outs, sums, strict=True))
    for sinks in (None, jnp.asarray([0.3])):
        out, lse = merged(parts, sinks)
        weights = np.exp(np.asarray(sums[:, 0, 0, 0], np.float64))
        total = weights.sum() + (0.0 if sinks is None else np.exp(0.3))
        np.testing.assert_allclose(out[0, 0, 0], np.asarray(outs[:, 0, 0, 0]).T @ weights / total, rtol=1e-6)
        np.testing.assert_allclose(lse[0, :, 0], [np.log(total), -np.inf if sinks is None else 0.3], rtol=1e-6)
        np.testing.assert_array_equal(out[0, 1], jnp.zeros((1, 4)))


@every_backend
def test_rows_that_see_nothing_are_zero_and_pass_no_gradient(backend):
    """Row 1 is all padding; the first five queries of row 0 see nothing in the far region."""
    rows = jnp.concatenate([RANGE, jnp.full_like(RANGE, -1)])
    spoiled = [x.at[1, 3].set(jnp.nan).at[1, 5].set(jnp.inf) for x in (Q, K, V)]
    out, grads = attend_and_gradient(*spoiled, rows, jnp.ones_like(Q), (NEAR, FAR), backend)
    alone = attend_and_gradient(Q, K, V, rows, jnp.ones_like(Q), (NEAR, FAR), backend)
    np.testing.assert_array_equal(out[1], jnp.zeros_like(out[1]))
    np.testing.assert_allclose(out, alone[0], atol=1e-6)
    for grad, grad_alone in zip(grads, alone[1], strict=True):
        np.testing.assert_array_equal(grad[1], jnp.zeros_like(grad[1]))
        np.testing.assert_allclose(grad, grad_alone, atol=1e-5)


@every_backend
def test_a_row_spoiled_in_one_region_spoils_no_gradient_of_another(backend):
    """Token 2 is NaN: tokens 2 to 6 see it near, the later ones far; those before it are as they were."""
    spoiled, rows = K.at[0, 2].set(jnp.nan), jnp.concatenate([RANGE, RANGE])
    plain, plain_grads = attend_and_gradient(Q, K, V, rows, jnp.ones_like(Q).at[0, 2:].set(0.0), (NEAR, FAR), backend)
    for cotangent in (jnp.ones_like(Q).at[0, 2:].set(0.0), jnp.ones_like(Q)):
        out, grads = attend_and_gradient(Q, spoiled, V, rows, cotangent, (NEAR, FAR), backend)
        assert np.all(np.isnan(out[0, 2:]))
        np.testing.assert_allclose(out.at[0, 2:].set(0.0), plain.at[0, 2:].set(0.0), atol=1e-6)
        for grad, plain_grad in zip(grads, plain_grads, strict=True):
            np.testing.assert_allclose(grad, plain_grad, atol=1e-5)


@every_backend
def test_bfloat16_parts_are_merged_in_float32(backend):
    case = qkv(batch=1, queries=SEQ, keys=SEQ) | positions(SEQ)
    short: dict[str, Any] = {x: jnp.asarray(case[x], jnp.bfloat16) for x in "qkv"}
    exact = reference64.attention(**case | {x: np.asarray(value, np.float64) for x, value in short.items()})[0]
    parts = tuple(Region(q_table=None, kv_table=None, low=low, high=high) for low, high in ((0, 3), (3, None)))
    out = attend(*short.values(), regions=parts, backend=backend)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), exact, atol=1e-6, rtol=2**-8)


def test_the_schedule_of_a_region_can_be_learned():
    """Gradients reach the frequencies through the tables, alike on both backends."""

    def loss(schedule, backend):
        near, slow = (rj.rotary_table(schedule, p) for p in (RANGE, RANGE // 3))
        regions = (replace(NEAR, q_table=near, kv_table=near), replace(FAR, q_table=slow, kv_table=slow))
        return jnp.sum(jnp.sin(attend(Q, K, V, regions=regions, backend=backend)))

    found = [jax.jit(jax.grad(loss), static_argnums=1)(SCHEDULE, backend).inv_freq for backend in SERVING]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4, rtol=1e-4)
    assert np.all(np.abs(found[0]) > 1e-3)


tokens = st.lists(st.tuples(st.integers(-2, 12), st.integers(0, 9)), min_size=9, max_size=9)


@jax.jit
def tiles_that_meet(q_positions, q_keys, kv_positions, kv_keys, low, high):
    band = Band(q_keys[None], kv_keys[None], low, high)
    queries = blocks(q_positions[None], None, 4, once=True, keys=band.q_keys)
    return meetings(queries, blocks(kv_positions[None], None, 4, once=True, keys=band.kv_keys), None, band)


@settings(max_examples=40, deadline=None)
@given(queries=tokens, keys=tokens, low=st.integers(-3, 6), width=st.integers(0, 5))
def test_a_tile_that_is_skipped_holds_no_pair_of_the_region(queries, keys, low, width):
    (q_positions, q_keys), (kv_positions, kv_keys) = (np.array(side).T for side in (queries, keys))
    real = [np.maximum(side, -1) for side in (q_positions, kv_positions)]
    meet = np.asarray(tiles_that_meet(real[0], q_keys, real[1], kv_keys, low, low + width))
    for i in range(9):
        for j in visible_keys(q_positions[i], kv_positions, 1, np.ones(9), None):
            assert meet[i // 4, j // 4] or not low <= q_keys[i] - kv_keys[j] < low + width


def test_two_regions_cost_the_tiles_of_one_and_those_on_their_border():
    """16 blocks of 4 tokens: 136 tiles on and below the diagonal, of which 12 hold the border at 16 tokens."""
    line = jnp.arange(64)[None]
    cut = blocks(line, None, 4, once=True, keys=line)
    near, far = (meetings(cut, cut, None, Band(line, line, *bounds)) for bounds in ((0, 16), (16, None)))
    assert int(meetings(cut, cut, None).sum()) == 136 == int((near | far).sum())
    assert int((near & far).sum()) == 12


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (NEAR, {}, "`regions` must be a tuple of Region; got Region. Write (region,)"),
    ((), {}, "`regions` must hold at least one Region; got none."),
    ((TABLE,), {}, "`regions` must hold Region; got RotaryTable."),
    ((replace(NEAR, low=2.0),), {}, "`low` must be an integer or an int32 scalar; got 2.0."),
    ((replace(NEAR, low=7),), {}, "`high` must not be below `low` = 7; got 5."),
    ((replace(NEAR, q_key=RANGE - 1, kv_key=RANGE),), {}, "`q_key` must not be negative"),
    ((replace(NEAR, q_key=RANGE[:, :4], kv_key=RANGE),), {}, "`q_key` must be [batch or 1, seq] = [2 or 1, 12]"),
    ((replace(NEAR, q_table=rj.rotary_table(SCHEDULE, RANGE[:, :4])),), {}, "`table` must match `x` in seq"),
    ((NEAR, replace(FAR, low=4)), {}, "got regions 0 and 1 with key differences from 4 on in both. Let `high`"),
    ((NEAR, NEAR), {}, "`regions` must not overlap"),
    ((NEAR, replace(FAR, q_key=RANGE + 1, kv_key=RANGE)), {}, "got regions 0 and 1 with row 0, query 4, key 0 in both"),
    ((NEAR, FAR), {"backend": "xla"}, "got 'xla': its log-sum-exp carries no gradient, and regions are merged by"),
]


@pytest.mark.parametrize(("regions", "changes", "message"), REFUSED)
def test_what_makes_no_softmax_is_refused(regions, changes, message):
    with unchecked(), pytest.raises((TypeError, ValueError)) as error:
        rj.attend(Q, K, V, q_positions=RANGE, kv_positions=RANGE, regions=regions, **changes)
    assert message in str(error.value)


def test_an_unknown_layout_is_refused():
    unknown: Any = "split"
    with unchecked(), pytest.raises(ValueError, match="`layout` must be"):
        rj.attend(Q, K, V, q_positions=RANGE, kv_positions=RANGE, regions=(replace(NEAR, layout=unknown),))


def test_keys_of_their_own_are_compared_pair_by_pair_where_they_are_known(monkeypatch):
    """Also inside jit; traced ones, and very many, are taken at their word."""
    half, moved = RANGE // 6, RANGE // 6 + 3
    same = replace(NEAR, q_key=half, kv_key=half, high=1)
    across, overlapping = (replace(FAR, q_key=moved, kv_key=moved, low=low) for low in (1, 0))

    def shape(regions):
        call = partial(rj.attend, k=K, v=V, q_positions=RANGE, kv_positions=RANGE, regions=regions)
        return jax.eval_shape(call, Q).shape

    assert shape((same, across)) == Q.shape
    with pytest.raises(ValueError, match=r"regions 0 and 1 with row 0, query 0, key 0 in both"):
        shape((same, overlapping))
    traced = jax.eval_shape(lambda p: attend(Q, K, V, p, backend="chunked", regions=(same, overlapping)), RANGE)
    assert traced.shape == Q.shape
    monkeypatch.setattr(regions_module, "CHECKED_PAIRS", 100)
    assert shape((same, overlapping)) == Q.shape


def test_only_backends_whose_log_sum_exp_is_differentiable_serve_regions():
    request = Request(
        q=Q, k=K, v=V, q_positions=RANGE.astype(jnp.int32), kv_positions=RANGE.astype(jnp.int32), q_segments=None,
        kv_segments=None, window=None, softcap=None, sinks=None, slopes=None, scale=1.0, order="contiguous",
        band=Band(RANGE, RANGE, 0, 5),
    )  # fmt: skip
    assert {name for name, backend in BACKENDS.items() if backend.refuses(request) is None} == set(SERVING)

"""Faults that users of RoPE met in the field, stated as what must hold instead."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import nn
from tests.nn.models import decoder, forward


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("phase", ["exact", "float32"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float64])
def test_a_schedule_that_was_cast_is_refused_not_used(dtype, phase) -> None:
    with jax.enable_x64(True):
        cast = jax.tree.map(lambda leaf: leaf.astype(dtype), rj.geometric_schedule(128))
        with pytest.raises(TypeError, match=r"`schedule` must hold float32 arrays; got (b?float16|float64)"):
            rj.rotary_table(cast, jnp.arange(4, dtype=jnp.int32), phase=phase)


@pytest.mark.usefixtures("unchecked")
def test_a_table_that_was_cast_is_refused_not_used() -> None:
    table = rj.rotary_table(rj.geometric_schedule(8), np.arange(3)[None])
    cast = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), table)
    with pytest.raises(TypeError, match=r"`table` must be float32; got bfloat16"):
        rj.rotate(jnp.ones((1, 3, 2, 8), jnp.bfloat16), cast)


def test_neighbouring_positions_never_share_a_rotation() -> None:
    table = rj.rotary_table(rj.geometric_schedule(128), np.arange(4096))
    fastest = np.stack([table.cos[:, 0], table.sin[:, 0]], axis=1)
    assert len(np.unique(fastest, axis=0)) == 4096
    far = rj.rotary_table(rj.geometric_schedule(128), np.array([15962]))
    assert far.cos[0, 0] == pytest.approx(np.cos(15962.0), abs=1e-6) == pytest.approx(-0.90802, abs=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "tensorfloat32"])
def test_matmul_precision_does_not_reach_the_angle(precision) -> None:
    positions = np.array([[2049, 5], [4097, 8191]])
    with jax.default_matmul_precision(precision):
        table = jax.jit(rj.rotary_table)(rj.geometric_schedule(128), positions)
    np.testing.assert_allclose(table.sin[..., 0], np.sin(positions.astype(np.float64)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("order", [(8, 64, 8), (64, 8, 64)])
def test_no_length_leaves_a_trace_for_the_next(order) -> None:
    spec = rj.RopeSpec(16, transform=rj.DynamicNTK(factor=2.0, original_length=16))
    # A function of this test's own, so that the first length of the order is the first that it is traced for.
    schedule = jax.jit(lambda length: spec.schedule(length))
    results = [schedule(jnp.int32(length)).float64() for length in order]
    np.testing.assert_array_equal(results[0], results[2])
    short = results[order.index(8)]
    np.testing.assert_allclose(short, rj.geometric_schedule(16).float64(), rtol=1e-14)


def test_python_numpy_and_jax_positions_share_programs() -> None:
    traces = 0

    @jax.jit
    def table(position):
        nonlocal traces
        traces += 1
        return rj.rotary_table(PLAIN, jnp.asarray(position, jnp.int32)[None]).cos

    results = [table(np.int32(7)), table(jnp.int32(7)), table(7), table(9)]
    assert traces <= 2
    np.testing.assert_array_equal(results[0], results[2])


PLAIN = rj.geometric_schedule(8)
DYNAMIC = rj.DynamicNTK(factor=4.0, original_length=8)
LONG = rj.LongRoPE(short_factors=(1, 1, 1, 1), long_factors=(1, 2, 4, 8), original_length=8, factor=1)


@pytest.mark.parametrize("method", [DYNAMIC, LONG], ids=["DynamicNTK", "LongRoPE"])
def test_documents_packed_into_a_long_row_keep_their_own_length(method) -> None:
    """Three documents of 4 in a row of 12, trained on 8: none is longer than that, so nothing is scaled."""
    segments = jnp.asarray([[1] * 4 + [2] * 4 + [3] * 4], jnp.int32)
    positions = rj.packed_positions(segments)
    token_ids = jnp.asarray([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]], jnp.int32)
    spec = rj.RopeSpec(8, transform=method)
    packed = forward(decoder(), token_ids, spec.schedule(rj.lengths(positions, segments)), positions, segments)
    plain = forward(decoder(), token_ids, PLAIN, positions, segments)
    np.testing.assert_allclose(packed, plain, rtol=0, atol=1e-5)
    row = forward(decoder(), token_ids, spec.schedule(12), positions, segments)
    assert np.max(np.abs(row - plain)) > 1e-3


def test_partial_rotary_is_full_rotary_of_the_slice() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 3, 2, 12)), jnp.float32)
    table = rj.rotary_table(rj.geometric_schedule(8), np.array([[2, 4096, 131071]]))
    for layout in ("half", "interleaved"):
        part = rj.rotate(x, table, layout=layout)
        np.testing.assert_array_equal(part[..., :8], rj.rotate(x[..., :8], table, layout=layout))
        np.testing.assert_array_equal(part[..., 8:], x[..., 8:])


def test_one_prefill_may_fill_the_cache_exactly() -> None:
    model, token_ids = decoder(), jnp.asarray([[1, 2, 3, 4, 5, 6, 7]], jnp.int32)
    positions = jnp.arange(7, dtype=jnp.int32)[None]
    logits, cache = model(token_ids, PLAIN, positions=positions, cache=model.empty_cache(1, 7))
    np.testing.assert_allclose(logits, forward(model, token_ids, PLAIN, positions), rtol=0, atol=2e-5)
    assert int(cache.check().used) == 7


def test_an_overfull_cache_keeps_its_slots_under_vmap() -> None:
    cache = nn.KVCache.empty(1, 4, 1, 4)
    three = jnp.ones((1, 3, 1, 4))
    caches = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), cache.append(three, three, np.arange(3)[None]))
    two = jnp.zeros((2, 1, 2, 1, 4))
    after = jax.vmap(lambda c, new: c.append(new, new, jnp.array([[3, 4]], jnp.int32)))(caches, two)
    np.testing.assert_array_equal(after.k, caches.k)
    with pytest.raises(ValueError, match="`capacity` must hold every token appended; got 4 slots"):
        after.check()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("phase", ["exact", "float32"])
def test_a_diverged_frequency_shows(broken, phase) -> None:
    schedule = PLAIN.replace(inv_freq=PLAIN.inv_freq.at[1].set(broken))
    table = rj.rotary_table(schedule, np.arange(1, 4), phase=phase)
    assert np.all(np.isnan(table.cos[:, 1])) and np.all(np.isnan(table.sin[:, 1]))
    assert np.all(np.isfinite(table.cos[:, [0, 2, 3]]))


lib: Any = rj  # untyped: what follows is wrong on purpose
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a schedule that is none": (lambda: lib.rotary_table(lib.Identity(), [0]), TypeError, "`schedule` must be a Freq"),
    "a transform of none": (lambda: lib.Identity()(None), TypeError, "`schedule` must be a FrequencySchedule"),
    "a table that is none": (lambda: lib.rotate(jnp.ones((1, 1, 1, 8)), None), TypeError, "`table` must be a Rotary"),
    "a lone position": (lambda: lib.rotary_table(PLAIN, 5), ValueError, "`positions` must have a seq axis"),
    "axes that are flags": (
        lambda: lib.rotary_table(PLAIN, [[0], [1]], pair_axes=(True,) * 4),
        ValueError,
        "`pair_axes` must name",
    ),
    "a mask of numbers": (
        lambda: lib.packed_positions(np.ones((1, 2), np.int32), np.full((1, 2), 2)),
        TypeError,
        "`mask` must be boolean",
    ),
    "a mask of another shape": (
        lambda: lib.packed_positions(np.ones((1, 2), np.int32), np.ones((3, 2), bool)),
        ValueError,
        "`mask` must have the shape",
    ),
    "lengths of one row": (lambda: lib.lengths(np.arange(3)), ValueError, r"`positions` must be \[batch, seq\]"),
    "a negative length in an array": (
        lambda: DYNAMIC(PLAIN, length=np.array([3, -5])),
        ValueError,
        "`length` must be at least 0",
    ),
    "a length that is a flag": (
        lambda: DYNAMIC(PLAIN, length=np.array([True])),
        TypeError,
        "`length` must be a number",
    ),
    "a length that is a word": (lambda: lib.Identity()(PLAIN, length="foo"), TypeError, "`length` must be a number"),
    "frequencies of flags": (lambda: lib.FrequencySchedule.of([True]), TypeError, "`inv_freq` must be numbers"),
    "frequencies beyond float32": (lambda: lib.FrequencySchedule.of([1e300]), ValueError, "`inv_freq` must be finite"),
    "a scale of nothing": (lambda: lib.FrequencySchedule.of([1.0], 0.0), ValueError, "`attention_scale` must be above"),
    "integer queries": (
        lambda: lib.RopeSpec(8).scale_queries(jnp.ones((1, 1, 1, 8), jnp.int32), [[0]]),
        TypeError,
        "`q` must be floating",
    ),
    "queries of other positions": (
        lambda: lib.RopeSpec(8, query_scale=abs).scale_queries(jnp.ones((1, 1, 1, 8)), np.arange(3)[None]),
        ValueError,
        r"`positions` must be \[\*batch, seq\]",
    ),
    "a rule that is a number": (lambda: lib.RopeSpec(8, query_scale=3), TypeError, "`query_scale` must be a rule"),
    "a spec that is a number": (lambda: lib.ModelRope({"all": 3}, ("all",)), TypeError, "`specs` must hold RopeSpec"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
def test_what_is_none_of_its_kind_is_named(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()

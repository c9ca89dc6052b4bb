"""Faults that users met in the field, through the block, the cache and generation: what must hold instead."""

import dataclasses
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, drawn, forward, step, weights
from tests.nn.numpy_decoder import attention

WIDTH, TRAINED = 32, 16
ONE_LAYER = replace(SMALL, layers=1, pattern=("all",), windows=())
ROWS = np.random.default_rng(4).integers(0, 13, (2, WIDTH)).astype(np.int32)
LINE = np.arange(WIDTH, dtype=np.int32)[None]
DYNAMIC = rj.RopeSpec(8, theta=100.0, transform=rj.DynamicNTK(factor=4.0, original_length=TRAINED))
LONG = rj.RopeSpec(
    8,
    theta=100.0,
    transform=rj.LongRoPE(short_factors=(1, 1, 1, 1), long_factors=(1, 2, 4, 8), original_length=TRAINED, factor=4.0),
)
TEMPERED = rj.AttentionTemperature(scale=(1 + np.log(4.0) / np.log(16.0)) ** 0.5)
SHORT_LIST, LONG_LIST = TEMPERED(PLAIN), TEMPERED(rj.Rescale(factors=(1.0, 2.0, 4.0, 8.0))(PLAIN))
EXPECTED = {
    # alpha = s L / L0 - (s - 1), which is the factor of static NTK; the switch is at more than L0 tokens.
    "dynamic": (
        DYNAMIC,
        {15: PLAIN, 16: PLAIN, 17: rj.NTKAware(factor=1.25)(PLAIN), 32: rj.NTKAware(factor=5.0)(PLAIN)},
    ),
    "longrope": (LONG, {15: SHORT_LIST, 16: SHORT_LIST, 17: LONG_LIST, 32: LONG_LIST}),
}
by_kind = pytest.mark.parametrize("kind", EXPECTED)


def first_log_prob(schedule, count, positions=None, **options):
    """Of the likeliest token after the first `count` tokens of row 0."""
    prompt = ROWS[:1, :count]
    return nn.generate(decoder(), prompt, max_new_tokens=1, schedule=schedule, positions=positions, **options).log_probs


@by_kind
def test_the_length_is_that_of_the_tokens_wherever_it_becomes_known(kind):
    """Not the width of the array, not the largest so far: in one program, in any order, mapped, scanned, recomputed."""
    spec, expected = EXPECTED[kind]
    model, traces = decoder(ONE_LAYER), []

    def logits(model, count):
        traces.append(count)
        positions = rj.padded_positions(LINE < count)
        return model(ROWS[:1], spec.schedule(rj.lengths(positions)), positions=positions)

    run = jax.jit(logits)
    for count in (32, 15, 16, 17, 32, 15):
        plain = forward(model, ROWS[:1], expected[count], jnp.where(LINE < count, LINE, -1))
        np.testing.assert_allclose(run(model, jnp.int32(count))[:, :count], plain[:, :count], rtol=0, atol=2e-5)
    assert len(traces) == 1
    np.testing.assert_array_equal(run(model, jnp.int32(15)), run(model, jnp.int32(15)))
    counts = jnp.asarray([*expected], jnp.int32)
    singly = jnp.stack([run(model, count) for count in counts])
    mapped = jax.jit(jax.vmap(logits, (None, 0)))(model, counts)
    np.testing.assert_allclose(mapped, singly, rtol=0, atol=2e-5)
    scanned = jax.jit(lambda model: jax.lax.map(lambda count: jax.checkpoint(logits)(model, count), counts))(model)
    np.testing.assert_allclose(scanned, singly, rtol=0, atol=2e-5)


@by_kind
def test_a_request_is_as_long_as_its_tokens_and_its_reserve(kind):
    """Not as its cache (64 slots), not as a chunk of it: every chunk of a prompt of 17 is read at 17."""
    spec, expected = EXPECTED[kind]
    for count in (15, 16, 17):
        for chunk in (None, 4):
            got = first_log_prob(spec.schedule, count, chunk=chunk)
            np.testing.assert_allclose(got, first_log_prob(expected[count], count), rtol=0, atol=2e-5)
    reserved = first_log_prob(spec.schedule, 15, reserve=17)
    np.testing.assert_allclose(reserved, first_log_prob(expected[32], 15), rtol=0, atol=2e-5)
    assert np.max(np.abs(reserved - first_log_prob(expected[15], 15))) > 1e-3


@by_kind
def test_a_long_row_leaves_a_short_one_alone_in_the_cache(kind):
    """Eight tokens beside 32, read in two chunks: both as alone, in either order."""
    spec, model = EXPECTED[kind][0], decoder()
    mask = LINE < np.array([[8], [32]])
    positions = np.where(mask, LINE, -1)

    def cached(order):
        ids, places = ROWS[order], positions[order]
        schedule, cache, parts = spec.schedule(rj.lengths(places)), None, []
        cache = model.empty_cache(2, WIDTH, keys="unrotated")
        for start in (0, 16):
            here = slice(start, start + 16)
            logits, cache = step(model, ids[:, here], schedule, places[:, here], cache)
            parts.append(logits)
        return np.concatenate(parts, axis=1)

    got = cached([0, 1])
    for row, count in enumerate((8, 32)):
        alone = forward(model, ROWS[[row, row], :count], spec.schedule(count), LINE[:, :count])
        np.testing.assert_allclose(got[row, :count], alone[0], rtol=0, atol=2e-5)
    np.testing.assert_allclose(cached([1, 0])[::-1][mask], got[mask], rtol=0, atol=2e-6)


def test_documents_that_begin_with_padding_begin_at_zero():
    """Mask 0 1 1 0 1 1 and segments 1 1 1 2 2 2: twice the same two tokens, the same logits as alone."""
    mask, segments = jnp.asarray([[False, True, True] * 2]), jnp.asarray([[1, 1, 1, 2, 2, 2]], jnp.int32)
    ids = jnp.asarray([[9, 3, 7, 1, 3, 7]], jnp.int32)
    positions = rj.packed_positions(segments, mask)
    assert positions.tolist() == [[-1, 0, 1, -1, 0, 1]]
    for schedule in (PLAIN, DYNAMIC.schedule(rj.lengths(positions, segments))):
        got = forward(decoder(ONE_LAYER), ids, schedule, positions, segments)
        alone = forward(decoder(ONE_LAYER), ids[:, 1:3], PLAIN, POSITIONS[:, :2])
        np.testing.assert_allclose(got[:, 1:3], alone, rtol=0, atol=2e-5)
        np.testing.assert_allclose(got[:, 4:], alone, rtol=0, atol=2e-5)


def test_no_position_is_clamped_or_taken_from_the_end():
    """Keys at 4095, 4096, 999,999 and 10^6 in a cache, and padding: as float64 has them, known only at run time."""
    config = nn.AttentionConfig(embed=12, heads=4, kv_heads=2, head_dim=8)
    block = drawn(lambda: nn.RotaryAttention(config, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 12)), jnp.float32)
    positions = np.array([[4095, 4096, -1, 999_999, 1_000_000, 10_000_001]], np.int32)

    @jax.jit
    def read(x, positions, cache):
        table = rj.rotary_table(PLAIN, positions)
        return block(x, table, positions=positions, cache=cache, schedule=PLAIN)

    cache, parts = nn.KVCache.empty(1, 6, 2, 8).rerotate(PLAIN), []
    for start in (0, 3):
        out, cache = read(x[:, start : start + 3], positions[:, start : start + 3], cache)
        parts.append(out)
    real, got = positions[0] >= 0, jnp.concatenate(parts, axis=1)[0]
    expected = attention(
        np.asarray(x[0], np.float64)[real], weights(block), dataclasses.asdict(config), PLAIN.float64(),
        positions[0][real],
    )  # fmt: skip
    np.testing.assert_allclose(got[real], expected, rtol=0, atol=2e-5)
    far = first_log_prob(PLAIN, 16, positions=LINE[:, :16] + 1_000_000)
    np.testing.assert_allclose(far, first_log_prob(PLAIN, 16), rtol=0, atol=2e-5)


def test_what_empty_slots_hold_is_never_read():
    """Memory that was never written: NaN and infinity in every slot, and in the keys and values of padding."""
    model = decoder()
    positions = jnp.concatenate([jnp.full((1, 2), -1, jnp.int32), POSITIONS[:, : SEQ - 2]], axis=1)
    whole = forward(model, TOKEN_IDS, PLAIN, positions)
    cache = model.empty_cache(2, SEQ + 2).rerotate(PLAIN)
    cache = replace(cache, k=jnp.full_like(cache.k, jnp.nan), v=jnp.full_like(cache.v, jnp.inf))
    for start, stop in ((0, 6), *((stop - 1, stop) for stop in range(7, SEQ + 1))):
        got, cache = step(model, TOKEN_IDS[:, start:stop], PLAIN, positions[:, start:stop], cache)
        np.testing.assert_allclose(got, whole[:, start:stop], rtol=0, atol=2e-5)
        # What padding left behind may be anything, too.
        cache = replace(cache, v=jnp.where((cache.positions < 0)[None, :, :, None, None], jnp.nan, cache.v))


@pytest.mark.parametrize(("backend", "dtype"), [("reference", "float32"), ("chunked", "bfloat16")])
def test_a_row_of_nothing_but_padding_changes_no_gradient(backend, dtype):
    graph, state = nnx.split(decoder(replace(ONE_LAYER, backend=backend, dtype=dtype, scalable_softmax=True)))
    alone = jnp.concatenate([POSITIONS, POSITIONS])

    @jax.jit
    @jax.grad
    def gradient(state, positions):
        schedule = DYNAMIC.schedule(rj.lengths(positions))
        return jnp.sum(jnp.sin(nnx.merge(graph, state)(TOKEN_IDS, schedule, positions=positions)[0]))

    got, expected = gradient(state, alone.at[1].set(-1)), gradient(state, alone)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.all(np.isfinite(one)) and np.any(other)
        atol = (1e-5 if dtype == "float32" else 2e-2) * float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def test_no_table_is_baked_into_the_program():
    """A decode step for 131,072 slots takes another backend than one for 16, and hardly more text."""
    model, sizes = decoder(), {}
    for capacity in (16, 131_072):
        cache = jax.eval_shape(lambda capacity=capacity: model.empty_cache(2, capacity).rerotate(PLAIN))
        sizes[capacity] = len(step.lower(model, TOKEN_IDS[:, :1], PLAIN, POSITIONS[:, :1], cache).as_text())
    assert sizes[131_072] < 1.5 * sizes[16] < 2**20


def test_every_integer_position_runs_the_same_program():
    model, traces = decoder(ONE_LAYER), []

    @jax.jit
    def advance(model, position, cache):
        traces.append(position)
        positions = jnp.broadcast_to(jnp.asarray(position, jnp.int32), (2, 1))
        return model(TOKEN_IDS[:, :1], PLAIN, positions=positions, cache=cache)

    cache = model.empty_cache(2, SEQ).rerotate(PLAIN)
    for position in (0, np.int64(1), jnp.int32(2), 3, np.int64(4), jnp.int32(5)):
        _, cache = advance(model, position, cache)
    assert len(traces) <= 2
    np.testing.assert_array_equal(cache.check().positions[0], [0, 1, 2, 3, 4, 5, -1, -1, -1, -1])

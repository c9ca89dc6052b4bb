"""Decoding through a cache gives what the whole forward gives, for every method, in any chunks, compiled once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import nn
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, forward, step
from tests.reference import Setting
from tests.scaling.contract import CONTRACT, NAMES, schedule

SPLITS = ((1, 6), (3, 6), (6,))
FAR = POSITIONS + 4090


def decoded(model, schedules, positions, split, keys, capacity=SEQ):
    """The logits of chunks up to `split`, then of single tokens, and the cache after them."""
    # Stated beforehand, the schedule does not change the structure of the cache, so a chunk compiles once.
    cache = model.empty_cache(2, capacity, keys=keys)
    if keys == "rotated":
        cache = cache.rerotate(schedules)
    stops, start, parts = (*split, *range(split[-1] + 1, SEQ + 1)), 0, []
    for stop in stops:
        logits, cache = step(model, TOKEN_IDS[:, start:stop], schedules, positions[:, start:stop], cache)
        parts.append(logits)
        start = stop
    return jnp.concatenate(parts, axis=1), cache


def test_every_method_has_a_line():
    """Length-dependent ones among them, at one fixed length."""
    assert {type(line.build(Setting())).__name__ for line in CONTRACT} >= set(rj.scaling.METHODS)


@pytest.mark.parametrize("keys", ["rotated", "unrotated"])
@pytest.mark.parametrize("line", CONTRACT, ids=NAMES)
def test_cached_decoding_equals_the_whole_forward(line, keys):
    model, turned = decoder(), schedule(line, Setting(rotary_dim=8))
    groups = {"L": PLAIN, "G": turned}
    whole = forward(model, TOKEN_IDS, groups, FAR)
    for split in SPLITS:
        got, cache = decoded(model, groups, FAR, split, keys)
        np.testing.assert_allclose(got, whole, rtol=0, atol=2e-5)
        np.testing.assert_array_equal(cache.check().positions, jnp.broadcast_to(FAR, (2, SEQ)))


@pytest.mark.parametrize("keys", ["rotated", "unrotated"])
def test_interleaved_pairs_decode_alike(keys):
    model = decoder(dataclasses.replace(SMALL, layout="interleaved"))
    whole = forward(model, TOKEN_IDS, PLAIN, FAR)
    np.testing.assert_allclose(decoded(model, PLAIN, FAR, (6,), keys)[0], whole, rtol=0, atol=2e-5)
    assert np.max(np.abs(whole - forward(decoder(), TOKEN_IDS, PLAIN, FAR))) > 1e-2


@pytest.mark.parametrize("keys", ["rotated", "unrotated"])
def test_half_precision_decodes_alike(keys):
    """Ten million tokens along, one key head: to the rounding of bfloat16."""
    model = decoder(dataclasses.replace(SMALL, kv_heads=1, dtype="bfloat16"))
    far = POSITIONS + 10_000_000
    whole = forward(model, TOKEN_IDS, PLAIN, far)
    got, cache = decoded(model, PLAIN, far, (6,), keys)
    assert cache.k.dtype == jnp.bfloat16
    np.testing.assert_allclose(got, whole, rtol=0, atol=2e-2 * float(jnp.max(jnp.abs(whole))))
    exact = forward(decoder(dataclasses.replace(SMALL, kv_heads=1)), TOKEN_IDS, PLAIN, far)
    np.testing.assert_allclose(got, exact, rtol=0, atol=5e-2 * float(jnp.max(jnp.abs(exact))))


def test_calling_twice_without_keeping_the_cache_does_not_advance():
    model = decoder()
    _, cache = step(model, TOKEN_IDS[:, :6], PLAIN, POSITIONS[:, :6], model.empty_cache(2, SEQ).rerotate(PLAIN))
    first, second = (step(model, TOKEN_IDS[:, 6:7], PLAIN, POSITIONS[:, 6:7], cache) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    assert int(cache.used) == 6 and int(first[1].used) == int(second[1].used) == 7
    np.testing.assert_array_equal(first[1].positions[0], [0, 1, 2, 3, 4, 5, 6, -1, -1, -1])
    np.testing.assert_array_equal(first[1].k, second[1].k)


def test_an_overfull_cache_marks_itself_in_all_layers():
    model = decoder()
    _, full = decoded(model, PLAIN, POSITIONS, (6,), "rotated")
    _, after = step(model, TOKEN_IDS[:, :1], PLAIN, POSITIONS[:, -1:] + 1, full)
    np.testing.assert_array_equal(after.k, full.k)
    np.testing.assert_array_equal(after.positions, full.positions)
    with pytest.raises(ValueError, match="`capacity` must hold every token appended; got 10 slots"):
        after.check()
    with pytest.raises(ValueError, match="`capacity` must hold every token appended; got 10 slots"):
        model(TOKEN_IDS[:, :1], PLAIN, positions=POSITIONS[:, -1:] + 1, cache=full)


def test_another_schedule_is_refused_until_the_keys_are_rerotated():
    model, other = decoder(), rj.PositionInterpolation(factor=2.0)(PLAIN)
    cache = model.empty_cache(2, SEQ).rerotate(PLAIN)
    _, cache = step(model, TOKEN_IDS[:, :6], PLAIN, POSITIONS[:, :6], cache)
    _, marked = step(model, TOKEN_IDS[:, 6:7], other, POSITIONS[:, 6:7], cache)
    np.testing.assert_array_equal(marked.k, cache.k)
    with pytest.raises(ValueError, match="`schedule` must be the one that the keys in the cache were rotated by"):
        marked.check()
    # One group under another schedule is another schedule.
    groups = {"L": PLAIN, "G": other}
    assert bool(step(model, TOKEN_IDS[:, 6:7], groups, POSITIONS[:, 6:7], cache)[1].mixed)
    moved = cache.rerotate(groups)
    np.testing.assert_allclose(moved.k[0], cache.k[0], rtol=0, atol=2e-6)
    assert np.max(np.abs(moved.k[1] - cache.k[1])) > 1e-2
    assert int(step(model, TOKEN_IDS[:, 6:7], groups, POSITIONS[:, 6:7], moved)[1].check().used) == 7


def test_unrotated_keys_follow_the_schedule_of_the_call():
    """With the first chunk's hidden states unchanged (one layer) they equal a prefill under the new schedule."""
    model, other = decoder(ONE_LAYER), rj.PositionInterpolation(factor=2.0)(PLAIN)
    _, cache = step(model, TOKEN_IDS[:, :6], PLAIN, POSITIONS[:, :6], model.empty_cache(2, SEQ, keys="unrotated"))
    _, rotated = step(model, TOKEN_IDS[:, :6], PLAIN, POSITIONS[:, :6], model.empty_cache(2, SEQ))
    expected = forward(model, TOKEN_IDS[:, :7], other, POSITIONS[:, :7])[:, 6:7]
    for held in (cache, rotated.rerotate(other)):
        got, _ = step(model, TOKEN_IDS[:, 6:7], other, POSITIONS[:, 6:7], held)
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


ONE_LAYER = nn.DecoderConfig(vocab=13, embed=16, layers=1, heads=2, kv_heads=1, mlp=16)
RING = nn.DecoderConfig(
    vocab=13, embed=16, layers=2, heads=2, kv_heads=1, mlp=16, pattern="AB", windows={"A": 2, "B": 3}
)


@pytest.mark.parametrize("keys", ["rotated", "unrotated"])
def test_windowed_layers_decode_round_a_ring(keys):
    """Windows of 2 and 3, chunks of 2: four slots serve ten tokens."""
    model = decoder(RING)
    whole = forward(model, TOKEN_IDS, PLAIN, POSITIONS)
    cache = model.empty_cache(2, 4, keys=keys)
    assert cache.window == 3
    for start in range(0, SEQ, 2):
        got, cache = step(model, TOKEN_IDS[:, start : start + 2], PLAIN, POSITIONS[:, start : start + 2], cache)
        np.testing.assert_allclose(got, whole[:, start : start + 2], rtol=0, atol=2e-5)
    assert int(cache.check().used) == SEQ


def test_rows_of_unequal_length_decode_as_they_would_alone():
    """Left padding in the prefill; every row goes on from its own length."""
    model = decoder()
    positions = jnp.stack([POSITIONS[0], jnp.maximum(POSITIONS[0] - 3, -1)])
    got, _ = decoded(model, PLAIN, positions, (6,), "rotated")
    alone = forward(model, jnp.roll(TOKEN_IDS, -3, axis=1), PLAIN, POSITIONS)
    np.testing.assert_allclose(got[0], forward(model, TOKEN_IDS, PLAIN, POSITIONS)[0], rtol=0, atol=2e-5)
    np.testing.assert_allclose(got[1, 3:], alone[1, : SEQ - 3], rtol=0, atol=2e-5)
    assert np.all(np.isfinite(got))


def test_sixty_four_steps_compile_once():
    model, traces = decoder(ONE_LAYER), []

    @jax.jit
    def advance(model, token_ids, schedule, positions, cache):
        traces.append(positions.shape)
        logits, cache = model(token_ids, schedule, positions=positions, cache=cache)
        return jnp.argmax(logits[:, -1:], axis=-1).astype(jnp.int32), cache

    cache = model.empty_cache(2, 72).rerotate(PLAIN)
    token_ids, cache = advance(model, TOKEN_IDS[:, :6], PLAIN, POSITIONS[:, :6], cache)
    token_ids, cache = advance(model, token_ids, PLAIN, jnp.full((1, 1), 6, jnp.int32), cache)
    warm = len(traces)
    for position in range(7, 71):
        token_ids, cache = advance(model, token_ids, PLAIN, jnp.full((1, 1), position, jnp.int32), cache)
    assert len(traces) == warm == 2 and int(cache.check().used) == 71


def test_decoding_scans():
    """A cache that knows its schedule keeps its structure from the first token on."""
    model = decoder()

    @jax.jit
    def scanned(model, cache):
        def one(cache, item):
            token_ids, position = item
            logits, cache = model(token_ids[:, None], PLAIN, positions=position[None, None], cache=cache)
            return cache, logits[:, 0]

        return jax.lax.scan(one, cache, (TOKEN_IDS.T, POSITIONS[0]))

    cache, logits = scanned(model, model.empty_cache(2, SEQ).rerotate(PLAIN))
    assert int(cache.check().used) == SEQ
    whole = forward(model, TOKEN_IDS, PLAIN, POSITIONS)
    np.testing.assert_allclose(jnp.moveaxis(logits, 0, 1), whole, rtol=0, atol=2e-5)


def test_caches_of_another_model_are_refused():
    model = decoder()
    with pytest.raises(ValueError, match="`cache` must be made for the layer groups"):
        model(TOKEN_IDS, PLAIN, positions=POSITIONS, cache=decoder(ONE_LAYER).empty_cache(2, SEQ))
    with pytest.raises(ValueError, match="`segments` must be None with a cache"):
        ones = jnp.ones((2, SEQ), jnp.int32)
        model(TOKEN_IDS, PLAIN, positions=POSITIONS, segments=ones, cache=model.empty_cache(2, SEQ))
    ring = nn.KVCache.empty(2, 4, 2, 8, window=4).for_layers(SMALL.layer_groups)
    with pytest.raises(ValueError, match="`cache` must keep every key"):
        model(TOKEN_IDS[:, :1], PLAIN, positions=POSITIONS[:, :1], cache=ring)

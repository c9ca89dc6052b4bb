"""Sliding layers keep a ring and the others every token, and the two advance together."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import nn
from rope_jax.nn.hybrid import HybridCache
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, forward, step
from tests.unchecked import unchecked

HALVED = rj.PositionInterpolation(factor=2.0)(PLAIN)
GROUPS = {"L": PLAIN, "G": HALVED}
UNEQUAL = dataclasses.replace(SMALL, layers=4, pattern="ABG", windows={"A": 2, "B": 4}, unroll=None)


def empty(model, keys="rotated", schedule=GROUPS, capacity=SEQ):
    cache = model.empty_cache(2, capacity, keys=keys, chunk=2)
    return cache.rerotate(schedule) if keys == "rotated" else cache


@pytest.mark.parametrize("keys", ["rotated", "unrotated"])
@pytest.mark.parametrize(
    ("config", "schedule"),
    [(SMALL, GROUPS), (SMALL, {"L": PLAIN, "G": None}), (UNEQUAL, PLAIN)],
    ids=["two bases", "no rope", "two windows"],
)
def test_decoding_equals_the_whole_forward(config, schedule, keys):
    model = decoder(config)
    whole = forward(model, TOKEN_IDS, schedule, POSITIONS)
    cache, start = empty(model, keys, schedule), 0
    assert isinstance(cache, HybridCache)
    for stop in (2, 4, 5, 6, 8, 10):
        got, cache = step(model, TOKEN_IDS[:, start:stop], schedule, POSITIONS[:, start:stop], cache)
        np.testing.assert_allclose(got, whole[:, start:stop], rtol=0, atol=2e-5)
        start = stop
    assert int(cache.check().used) == SEQ


def test_the_ring_is_as_small_as_the_window_allows():
    """Layers L, G, L with window 4: two rings of 4 + 2 - 1 slots beside one layer of 1000."""
    ring, rest = decoder().empty_cache(2, 1000, chunk=2).parts
    assert ring.k.shape == (2, 2, 5, 2, 8) and ring.window == 4 and ring.layer_groups == ("L", "L")
    assert rest.k.shape == (1, 2, 1000, 2, 8) and rest.window is None and rest.layer_groups == ("G",)
    # Nothing to save: one cache.
    assert isinstance(decoder().empty_cache(2, 5, chunk=2), nn.KVCache)
    assert isinstance(decoder().empty_cache(2, 1000), nn.KVCache)


def test_tokens_are_in_both_parts_or_in_neither():
    """The ring would take an eleventh token, the other part has no slot left; another schedule of one group alike."""
    model, cache = decoder(), empty(decoder())
    for start in range(0, SEQ, 2):
        _, cache = step(model, TOKEN_IDS[:, start : start + 2], GROUPS, POSITIONS[:, start : start + 2], cache)
    refused = (GROUPS, POSITIONS[:, -1:] + 1), ({"L": PLAIN, "G": PLAIN}, POSITIONS[:, -1:])
    for (schedule, positions), message in zip(refused, ("`capacity` must hold", "`schedule` must be"), strict=True):
        before = cache if schedule is GROUPS else empty(model)
        _, after = step(model, TOKEN_IDS[:, :1], schedule, positions, before)
        for part, kept in zip(after.parts, before.parts, strict=True):
            for name in ("k", "v", "positions", "used", "lost"):
                np.testing.assert_array_equal(getattr(part, name), getattr(kept, name))
        with pytest.raises(ValueError, match=message):
            after.check()
        with pytest.raises(ValueError, match=message):
            model(TOKEN_IDS[:, :1], schedule, positions=positions, cache=before)


def test_keys_are_rerotated_in_every_part():
    model = decoder()
    _, cache = step(model, TOKEN_IDS[:, :2], GROUPS, POSITIONS[:, :2], empty(model))
    moved = cache.rerotate(PLAIN)
    np.testing.assert_allclose(moved.parts[0].k, cache.parts[0].k, rtol=0, atol=2e-6)
    assert np.max(np.abs(moved.parts[1].k - cache.parts[1].k)) > 1e-2
    got, _ = step(model, TOKEN_IDS[:, 2:3], PLAIN, POSITIONS[:, 2:3], moved)
    assert np.all(np.isfinite(got))
    with pytest.raises(ValueError, match="`schedule` must be a schedule for at least one layer group"):
        cache.rerotate(None)


def test_caches_of_other_layers_are_refused():
    other = decoder(UNEQUAL).empty_cache(2, SEQ, chunk=2)
    with pytest.raises(ValueError, match="`cache` must be made for the layer groups"):
        decoder()(TOKEN_IDS[:, :1], PLAIN, positions=POSITIONS[:, :1], cache=other)
    narrow = decoder(dataclasses.replace(SMALL, windows=(("L", 3),))).empty_cache(2, SEQ, chunk=2)
    with pytest.raises(ValueError, match="`cache` must keep every key in the window 4 of the layers"):
        decoder()(TOKEN_IDS[:, :1], PLAIN, positions=POSITIONS[:, :1], cache=narrow)
    with unchecked(), pytest.raises(ValueError, match="`chunk` must be at least 1"):
        decoder().empty_cache(2, SEQ, chunk=0)


def test_the_branch_leaves_one_program_for_all_steps():
    model, traces = decoder(), []

    @jax.jit
    def advance(model, token_ids, positions, cache):
        traces.append(positions.shape)
        logits, cache = model(token_ids, GROUPS, positions=positions, cache=cache)
        return jnp.argmax(logits[:, -1:], axis=-1).astype(jnp.int32), cache

    token_ids, cache = TOKEN_IDS[:, :1], empty(model, capacity=16)
    for position in range(16):
        token_ids, cache = advance(model, token_ids, jnp.full((1, 1), position, jnp.int32), cache)
    assert len(traces) == 1 and int(cache.check().used) == 16

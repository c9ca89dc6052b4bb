"""The cache as a value: what goes in is there, at its position, and what does not fit changes nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import nn
from tests.nn.models import PLAIN
from tests.unchecked import unchecked

OTHER = rj.chain(rj.PositionInterpolation(factor=4.0), rj.AttentionTemperature(scale=1.5))(PLAIN)
RNG = np.random.default_rng(0)
BATCH, HEADS, WIDTH = 2, 2, 8


def tokens(count, dtype=jnp.float32):
    return jnp.asarray(RNG.standard_normal((BATCH, count, HEADS, WIDTH)), dtype)


def places(start, stop):
    return jnp.arange(start, stop, dtype=jnp.int32)[None]


@jax.jit
def append(cache, k, v, positions, schedule=None):
    return cache.append(k, v, positions, schedule)


def filled(count, capacity=8, schedule=None, **options):
    cache = nn.KVCache.empty(BATCH, capacity, HEADS, WIDTH, **options)
    return cache.append(tokens(count), tokens(count), places(0, count), schedule)


def assert_same_slots(cache, before):
    for name in ("k", "v", "positions", "used", "lost"):
        np.testing.assert_array_equal(getattr(cache, name), getattr(before, name))


def test_tokens_lie_in_order_at_their_rows_positions():
    k, v = tokens(3), tokens(3)
    positions = jnp.asarray([[5, 6, 9], [-7, 0, 1]], jnp.int32)
    cache = filled(2).append(k, v, positions)
    np.testing.assert_array_equal(cache.positions, [[0, 1, 5, 6, 9, -1, -1, -1], [0, 1, -1, 0, 1, -1, -1, -1]])
    np.testing.assert_array_equal(cache.k[:, 2:5], k)
    np.testing.assert_array_equal(cache.v[:, 2:5], v)
    assert int(cache.used) == 5 and cache.check() is cache


def test_append_leaves_the_old_cache_as_it_was():
    before = filled(4)
    kept = jax.tree.map(np.array, before)
    once, again = (before.append(jnp.ones((2, 1, 2, 8)), jnp.ones((2, 1, 2, 8)), places(4, 5)) for _ in range(2))
    assert_same_slots(before, kept)
    assert_same_slots(once, again)


def test_capacity_may_be_filled_exactly_and_not_exceeded():
    full = append(filled(6), tokens(2), tokens(2), places(6, 8))
    assert int(full.check().used) == 8
    with pytest.raises(ValueError, match="`capacity` must hold every token appended; got 8 slots"):
        full.append(tokens(1), tokens(1), places(8, 9))
    one_more = append(full, tokens(1), tokens(1), places(8, 9))
    assert_same_slots(one_more, full)
    with pytest.raises(ValueError, match="`capacity` must hold every token appended"):
        one_more.check()


def test_an_overfull_append_leaves_every_slot_alone():
    """Six of eight slots taken, four tokens more: not slid back over slots 4 and 5."""
    before = filled(6)
    with pytest.raises(ValueError, match="`capacity` must hold"):
        before.append(tokens(4), tokens(4), places(6, 10))
    after = append(before, tokens(4), tokens(4), places(6, 10))
    assert_same_slots(after, before)
    assert bool(after.overfull) and not bool(after.mixed)
    # The mark stays, also when a later append does fit.
    later = append(after, tokens(2), tokens(2), places(6, 8))
    assert int(later.used) == 8
    with pytest.raises(ValueError, match="`capacity` must hold"):
        later.check()


def test_check_needs_known_flags():
    with pytest.raises(TypeError, match="`check` must be called outside jit"):
        jax.jit(lambda cache: cache.check())(filled(1))


def test_rotated_keys_refuse_another_schedule():
    before = filled(3, schedule=PLAIN)
    for other in (OTHER, None, jax.tree.map(lambda leaf: leaf[None, None], PLAIN), {"all": OTHER}):
        with pytest.raises(ValueError, match="`schedule` must be the one that the keys in the cache were rotated by"):
            before.append(tokens(1), tokens(1), places(3, 4), other)
    after = append(before, tokens(1), tokens(1), places(3, 4), OTHER)
    assert_same_slots(after, before)
    assert bool(after.mixed) and not bool(after.overfull)
    with pytest.raises(ValueError, match="`schedule` must be the one"):
        after.check()
    # The residual alone tells two schedules apart.
    nudged = PLAIN.replace(residual=PLAIN.residual + 1e-12)
    assert bool(append(before, tokens(1), tokens(1), places(3, 4), nudged).mixed)
    same = append(before, tokens(1), tokens(1), places(3, 4), jax.tree.map(jnp.array, PLAIN)).check()
    assert int(same.used) == 4


def test_keys_without_a_schedule_take_none_later():
    with pytest.raises(ValueError, match="`schedule` must be the one"):
        filled(3).append(tokens(1), tokens(1), places(3, 4), PLAIN)
    assert bool(append(filled(3), tokens(1), tokens(1), places(3, 4), PLAIN).mixed)
    with pytest.raises(ValueError, match="`schedule` must have been stated"):
        filled(3).rerotate(PLAIN)


def test_unrotated_keys_take_any_schedule():
    cache = filled(3, schedule=PLAIN, keys="unrotated").append(tokens(1), tokens(1), places(3, 4), OTHER)
    assert cache.schedule is None and int(cache.check().used) == 4
    with pytest.raises(ValueError, match="`keys` must be rotated to be rerotated"):
        cache.rerotate(PLAIN)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rerotation_equals_rotation_by_the_new_schedule(dtype, layout):
    raw, positions = tokens(6), jnp.asarray([[0, 7, 4096, 100_003, 9_000_001, 2**30]] * 2, jnp.int32)
    old, new = (rj.rotate(raw, rj.rotary_table(schedule, positions), layout=layout) for schedule in (PLAIN, OTHER))
    cache = nn.KVCache.empty(2, 8, HEADS, WIDTH, dtype=dtype, layout=layout).append(old, raw, positions, PLAIN)
    moved = jax.jit(nn.KVCache.rerotate)(cache, OTHER)
    # In bfloat16 the stored keys are what was rounded: once more is allowed for the new ones.
    tolerance = 2e-6 if dtype == jnp.float32 else 2.0**-7
    np.testing.assert_allclose(
        moved.k[:, :6].astype(jnp.float32), new, rtol=0, atol=tolerance * float(jnp.max(jnp.abs(new)))
    )
    np.testing.assert_array_equal(moved.v, cache.v)
    assert moved.k.dtype == dtype
    assert int(moved.append(tokens(1, dtype), tokens(1, dtype), places(8, 9), OTHER).check().used) == 7
    with pytest.raises(ValueError, match="`schedule` must keep the rotary width"):
        cache.rerotate(rj.geometric_schedule(4))


def test_rerotating_an_empty_cache_states_its_schedule():
    cache = nn.KVCache.empty(2, 8, HEADS, WIDTH).rerotate(PLAIN)
    step = append(cache, tokens(1), tokens(1), places(0, 1), PLAIN)
    assert str(jax.tree.structure(step)) == str(jax.tree.structure(cache))
    assert int(step.check().used) == 1
    with pytest.raises(ValueError, match="`schedule` must be the one"):
        cache.append(tokens(1), tokens(1), places(0, 1), OTHER)


def test_a_ring_holds_the_last_tokens_round_and_round():
    """Window 4 and chunks of 3 take 6 slots: before every chunk the last three tokens are still there."""
    cache = nn.KVCache.empty(BATCH, 6, HEADS, WIDTH, window=4)
    values = tokens(18)
    for start in range(0, 18, 3):
        chunk = values[:, start : start + 3]
        cache = append(cache, chunk, chunk, places(start, start + 3))
        for position in range(max(0, start - 3), start + 3):
            (slot,) = np.flatnonzero(np.asarray(cache.positions[0]) == position)
            np.testing.assert_array_equal(cache.k[:, slot], values[:, position])
    assert int(cache.check().used) == 18


def test_a_ring_refuses_to_lose_a_key_that_can_still_be_seen():
    """Window 4 and 5 slots: two tokens at a time fit, three do not; a single late token can be one too many."""
    cache = filled(5, capacity=5, window=4)
    cache = append(cache, tokens(2), tokens(2), places(5, 7)).check()
    with pytest.raises(ValueError, match=re.escape("got 5 slots for window 4. Appending n tokens at a time")):
        cache.append(tokens(3), tokens(3), places(7, 10))
    after = append(cache, tokens(3), tokens(3), places(7, 10))
    assert_same_slots(after, cache)
    assert bool(after.overfull)
    # Padding overwrites as well: a row that pads while its window is needed says so at its next token.
    rows = jnp.asarray([[7, 8], [-1, -1]], jnp.int32)
    padded = append(cache, tokens(2), tokens(2), rows).check()
    assert bool(append(padded, tokens(1), tokens(1), jnp.asarray([[9], [7]], jnp.int32)).overfull)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, "`capacity` must be at least 1; got 0"),
        ({"keys": "turned"}, "`keys` must be"),
        ({"window": 9}, "`capacity` must be at least `window` in a ring; got 8 for window 9"),
        ({"layout": "split"}, "`layout` must be"),
    ],
)
def test_caches_that_cannot_work_are_refused(changes, message):
    sizes = {"batch": 2, "capacity": 8, "kv_heads": 2, "head_dim": 8}
    with unchecked(), pytest.raises(ValueError, match=message):
        nn.KVCache.empty(**(sizes | changes))


def test_tokens_that_do_not_fit_the_cache_are_refused():
    cache = filled(1)
    with unchecked(), pytest.raises(ValueError, match=re.escape("`k` and `v` must be (2, 2, 2, 8)")):
        cache.append(tokens(2), tokens(1), places(1, 3))
    with pytest.raises(ValueError, match=re.escape("`positions` must be [batch or 1, new]")):
        cache.append(tokens(2), tokens(2), jnp.zeros((3, 2), jnp.int32))
    with pytest.raises(TypeError, match="`positions` must be integers"):
        cache.append(tokens(1), tokens(1), jnp.zeros((1, 1)))
    # More tokens than slots is known from the shapes alone.
    with pytest.raises(ValueError, match="`capacity` must hold"):
        append(cache, tokens(9), tokens(9), places(1, 10))


SHARDED = """
import jax
from dataclasses import replace
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from rope_jax import nn

split = NamedSharding(jax.make_mesh((2,), ("slots",), axis_types=(AxisType.Auto,)), jax.P(None, "slots"))
append = jax.jit(lambda cache, x, positions: cache.append(x, x, positions))

def empty(capacity, window=None):
    cache = nn.KVCache.empty(1, capacity, 1, 2, window=window)
    return replace(cache, **{name: jax.device_put(getattr(cache, name), split) for name in ("k", "v", "positions")})

def run(cache, *stops):
    for start, stop in zip(stops, stops[1:]):
        positions = jnp.arange(start, stop, dtype=jnp.int32)
        cache = append(cache, jnp.ones((1, stop - start, 1, 2)) * positions[None, :, None, None], positions[None])
    return cache, cache.k[0, :, 0, 0].tolist(), cache.positions[0].tolist(), bool(cache.overfull)

six, *before = run(empty(8), 0, 6)
assert six.k.sharding.is_equivalent_to(split, 4), six.k.sharding
assert run(six, 6, 10)[1:] == (*before[:2], True), run(six, 6, 10)[1:]
assert run(six, 6, 8)[1:] == ([0, 1, 2, 3, 4, 5, 6, 7],) * 2 + (False,), run(six, 6, 8)[1:]
assert run(empty(6, window=4), 0, 3, 6, 9, 10)[1:] == ([6, 7, 8, 9, 4, 5],) * 2 + (False,)
"""


@pytest.mark.slow
def test_slots_divided_over_devices_are_written_as_on_one():
    """Where the compiler drops what is out of range instead of moving it back, refused tokens change nothing either."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

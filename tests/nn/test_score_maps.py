"""Score maps through the block, the layer scan and the cache."""

import dataclasses
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from rope_jax.attention import DualChunk, LeakyReRoPE, LMInfinite, ReRoPE, ScoreMap, SelfExtend
from rope_jax.nn.score_maps import mapped_groups
from tests.attention import score_reference
from tests.nn import numpy_decoder
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, drawn, weights
from tests.unchecked import unchecked

MAPS: MappingProxyType[str, tuple[ScoreMap, Any]] = MappingProxyType(
    {
        "SelfExtend": (SelfExtend(group=2, window=4), partial(score_reference.self_extend, group=2, window=4)),
        "DualChunk": (DualChunk(chunk=5, local=2), partial(score_reference.dual_chunk, chunk=5, local=2)),
        "ReRoPE": (ReRoPE(window=3), partial(score_reference.rerope, window=3)),
        "LeakyReRoPE": (LeakyReRoPE(window=3, factor=4), partial(score_reference.leaky_rerope, window=3, factor=4)),
        "LMInfinite": (
            LMInfinite(window=3, global_tokens=1),
            partial(score_reference.lm_infinite, window=3, global_tokens=1),
        ),
    }
)
every_map = pytest.mark.parametrize("name", MAPS)
SELF_EXTEND = MAPS["SelfExtend"][0]
SCALED = rj.AttentionTemperature(scale=1.25)(PLAIN)
# Row 1 is padded on the left and starts far along; no row has a map of distances that its length does not reach.
ROWS = jnp.stack([POSITIONS[0], jnp.asarray([-1, -1, *range(500, 508)], jnp.int32)])


class Groups:
    """A score map by layer group that a compiled program can be chosen by."""

    def __init__(self, **maps):
        self.maps = maps


@partial(jax.jit, static_argnames="score_map")
def forward(model, token_ids, schedule, positions, segments=None, *, score_map):
    score_map = score_map.maps if isinstance(score_map, Groups) else score_map
    return model(token_ids, schedule, positions=positions, segments=segments, score_map=score_map)


@partial(jax.jit, static_argnames="score_map")
def step(model, token_ids, schedule, positions, cache, *, score_map):
    return model(token_ids, schedule, positions=positions, cache=cache, score_map=score_map)


def by_hand(model, layers, row):
    real = np.asarray(ROWS[row]) >= 0
    sizes = dataclasses.asdict(model.config)
    return numpy_decoder.decoder(
        np.asarray(TOKEN_IDS[row])[real], weights(model), sizes, layers, np.asarray(ROWS[row])[real].tolist()
    )


def assert_rows_are(got, model, layers):
    for row in range(2):
        np.testing.assert_allclose(got[row][ROWS[row] >= 0], by_hand(model, layers, row), rtol=0, atol=2e-5)


@every_map
def test_decoder_agrees_with_the_published_rule(name):
    """All layers by the rule; it changes nothing within the sliding window of those that a map leaves plain."""
    model, (score_map, rule) = decoder(), MAPS[name]
    got = forward(model, TOKEN_IDS, SCALED, ROWS, score_map=score_map)
    full = (SCALED.float64(), 1.25, None, rule)
    assert_rows_are(got, model, [(SCALED.float64(), 1.25, 4, rule), full, (SCALED.float64(), 1.25, 4, rule)])
    assert np.max(np.abs(got - forward(model, TOKEN_IDS, SCALED, ROWS, score_map=None))) > 1e-3


def test_a_group_without_a_schedule_sees_all_and_turns_nothing():
    """Even by LM-Infinite, whose mask goes with its distances."""
    model, (score_map, rule) = decoder(), MAPS["LMInfinite"]
    got = forward(model, TOKEN_IDS, {"L": PLAIN, "G": None}, ROWS, score_map=score_map)
    sliding = (PLAIN.float64(), 1.0, 4, rule)
    assert_rows_are(got, model, [sliding, (None, 1.0, None), sliding])


def test_a_map_for_some_groups_leaves_the_others_plain():
    model, (score_map, rule) = decoder(), MAPS["DualChunk"]
    got = forward(model, TOKEN_IDS, PLAIN, ROWS, score_map=Groups(L=None, G=score_map))
    sliding = (PLAIN.float64(), 1.0, 4)
    assert_rows_are(got, model, [sliding, (PLAIN.float64(), 1.0, None, rule), sliding])
    other = forward(model, TOKEN_IDS, PLAIN, ROWS, score_map=Groups(L=score_map, G=None))
    assert_rows_are(other, model, [(*sliding, rule), (PLAIN.float64(), 1.0, None), (*sliding, rule)])


def test_groups_that_keep_their_plain_way():
    both: dict[str, Any] = {"L": PLAIN, "G": PLAIN}
    for score_map, groups in ((SELF_EXTEND, (False, True)), (SelfExtend(group=1, window=3), (True, True))):
        mapped = mapped_groups(score_map, both, SMALL, None)
        assert mapped is not None and mapped.groups == groups
    assert mapped_groups(SELF_EXTEND, both | {"G": None}, SMALL, None) is None
    assert mapped_groups({"L": SELF_EXTEND, "G": None}, both, SMALL, None) is None


@every_map
def test_decoding_through_an_unrotated_cache_equals_the_whole_forward(name):
    """A chunk, then token by token; rows of unequal length, one of them padded on the left."""
    model, score_map = decoder(), MAPS[name][0]
    whole = forward(model, TOKEN_IDS, PLAIN, ROWS, score_map=score_map)
    cache, start = model.empty_cache(2, SEQ + 2, keys="unrotated"), 0
    for stop in (5, *range(6, SEQ + 1)):
        got, cache = step(model, TOKEN_IDS[:, start:stop], PLAIN, ROWS[:, start:stop], cache, score_map=score_map)
        real = np.asarray(ROWS[:, start:stop] >= 0)
        np.testing.assert_allclose(got[real], whole[:, start:stop][real], rtol=0, atol=2e-5)
        start = stop
    assert int(cache.check().used) == SEQ


def test_decoding_compiles_once():
    model, traces = decoder(), []

    @jax.jit
    def advance(model, token_ids, positions, cache):
        traces.append(positions.shape)
        return model(token_ids, PLAIN, positions=positions, cache=cache, score_map=SELF_EXTEND)[1]

    cache = model.empty_cache(2, 20, keys="unrotated")
    for position in range(20):
        cache = advance(model, TOKEN_IDS[:, :1], jnp.full((1, 1), position, jnp.int32), cache)
    assert traces == [(1, 1)] and int(cache.check().used) == 20


@every_map
def test_packed_documents_have_the_logits_they_have_alone(name):
    model, score_map = decoder(), MAPS[name][0]
    alone = forward(model, TOKEN_IDS, PLAIN, POSITIONS, score_map=score_map)
    # Positions that go on over both documents, and a pad between them.
    token_ids = jnp.concatenate([TOKEN_IDS[:1], TOKEN_IDS[:1, :1], TOKEN_IDS[1:]], axis=1)
    positions = jnp.arange(2 * SEQ + 1, dtype=jnp.int32)[None]
    segments = jnp.asarray([[4] * SEQ + [0] + [2] * SEQ], jnp.int32)
    packed = forward(model, token_ids, PLAIN, positions, segments, score_map=score_map)
    np.testing.assert_allclose(packed[0, :SEQ], alone[0], rtol=0, atol=2e-5)
    np.testing.assert_allclose(packed[0, SEQ + 1 :], alone[1], rtol=0, atol=2e-5)


def test_a_schedule_per_row_goes_with_a_map():
    """Dynamic NTK at the length of each row: both rows as they are alone."""
    model, spec = decoder(), rj.RopeSpec(8, theta=100.0, transform=rj.DynamicNTK(factor=2.0, original_length=4))
    schedule = spec.schedule(rj.lengths(ROWS))
    got = forward(model, TOKEN_IDS, schedule, ROWS, score_map=SELF_EXTEND)
    for row in range(2):
        own = jnp.broadcast_to(ROWS[row : row + 1], ROWS.shape)
        alone = forward(model, TOKEN_IDS, spec.schedule(rj.lengths(own)), own, score_map=SELF_EXTEND)
        np.testing.assert_allclose(got[row][ROWS[row] >= 0], alone[row][ROWS[row] >= 0], rtol=0, atol=2e-5)


def test_a_schedule_per_key_head_and_chunked_gradients():
    """Heads that turn alike turn as one; loss and gradients of `chunked` are those of `reference`."""
    heads = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf])[:, None, None], PLAIN)
    score_map = MAPS["LeakyReRoPE"][0]

    def loss(model, schedule):
        return jnp.mean(jnp.square(model(TOKEN_IDS, schedule, positions=ROWS, score_map=score_map)))

    run = jax.jit(jax.value_and_grad(loss))
    models = (decoder(dataclasses.replace(SMALL, backend=backend, remat=True)) for backend in ("reference", "chunked"))
    (plain, grads), (found, found_grads) = (
        run(model, schedule) for model, schedule in zip(models, (PLAIN, heads), strict=True)
    )
    np.testing.assert_allclose(found, plain, rtol=1e-5)
    for grad, found_grad in zip(jax.tree.leaves(grads), jax.tree.leaves(found_grads), strict=True):
        np.testing.assert_allclose(found_grad, grad, atol=1e-4)


BLOCK = nn.AttentionConfig(embed=12, heads=4, kv_heads=2, head_dim=8, qk_norm=True, sinks=True, layout="interleaved")


def test_the_block_takes_regions_with_and_without_a_cache():
    module = drawn(lambda: nn.RotaryAttention(BLOCK, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, SEQ, 12)), jnp.float32)
    score_map, rule = MAPS["DualChunk"]

    @jax.jit
    def whole(x, positions):
        regions = score_map.regions(positions, positions, PLAIN, layout="interleaved")
        return module(x, None, positions=positions, regions=regions)

    @jax.jit
    def chunk(x, positions, cache):
        held = cache.reserve(positions)[0].positions
        regions = score_map.regions(positions, held, PLAIN, layout="interleaved")
        return module(x, None, positions=positions, cache=cache, regions=regions)

    got = whole(x, ROWS)
    for row in range(2):
        real = np.asarray(ROWS[row]) >= 0
        want = numpy_decoder.attention(
            np.asarray(x[row], np.float64)[real], weights(module), dataclasses.asdict(BLOCK), PLAIN.float64(),
            np.asarray(ROWS[row])[real].tolist(), distance=rule,
        )  # fmt: skip
        np.testing.assert_allclose(got[row][real], want, rtol=0, atol=1e-5)
    cache = nn.KVCache.empty(2, SEQ, 2, 8, keys="unrotated", layout="interleaved")
    for start, stop in ((0, 5), (5, 9), (9, 10)):
        part, cache = chunk(x[:, start:stop], ROWS[:, start:stop], cache)
        np.testing.assert_allclose(part, got[:, start:stop], rtol=0, atol=2e-5)


CALL: dict[str, Any] = {"positions": POSITIONS, "score_map": SELF_EXTEND}
OTHER = SelfExtend(group=4, window=8)


@pytest.mark.parametrize(
    ("schedule", "changes", "message"),
    [
        (PLAIN, {"score_map": {"L": SELF_EXTEND}}, "`score_map` must name the layer groups ('L', 'G'); got ('L',)."),
        (PLAIN, {"score_map": {"L": OTHER, "G": SELF_EXTEND}}, "`score_map` must be one map"),
        (PLAIN, {"score_map": "SelfExtend"}, "`score_map` must be a ScoreMap or None; got str."),
        (None, {}, "`schedule` must be given with `score_map`; got None"),
        (PLAIN, {"cache": decoder().empty_cache(2, SEQ)}, "`cache` must hold unrotated keys for a `score_map`"),
    ],
)
def test_what_does_not_go_together_is_refused(schedule, changes, message):
    with unchecked(), pytest.raises((TypeError, ValueError)) as error:
        decoder()(TOKEN_IDS, schedule, **CALL | changes)
    assert message in str(error.value)


def test_a_ring_forgets_where_the_document_starts():
    config = dataclasses.replace(SMALL, windows={"L": 4, "G": 5})
    ring = decoder(config).empty_cache(2, 6, keys="unrotated")
    with pytest.raises(ValueError, match="`cache` must keep the start of the document for a `score_map`"):
        decoder(config)(TOKEN_IDS[:, :1], PLAIN, positions=POSITIONS[:, :1], cache=ring, score_map=SELF_EXTEND)


def test_regions_of_the_block_stand_in_for_every_table():
    module = drawn(lambda: nn.RotaryAttention(BLOCK, rngs=nnx.Rngs(0)))
    regions = SELF_EXTEND.regions(POSITIONS, POSITIONS, PLAIN, layout="interleaved")
    x, table = jnp.ones((2, SEQ, 12)), rj.rotary_table(PLAIN, POSITIONS)
    with pytest.raises(ValueError, match="`regions` must come without `table`"):
        module(x, table, positions=POSITIONS, regions=regions)
    with pytest.raises(ValueError, match="`regions` must come without `schedule`"):
        module(x, None, positions=POSITIONS, schedule=PLAIN, regions=regions)
    cache = nn.KVCache.empty(2, SEQ, 2, 8, layout="interleaved")
    with pytest.raises(ValueError, match="`cache` must hold unrotated keys for `regions`"):
        module(x, None, positions=POSITIONS, cache=cache, regions=regions)

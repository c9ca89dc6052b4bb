"""The score maps of the field: their position tables, and attention by them against float64, pair by pair."""

from functools import cache, partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.attention import DualChunk, LeakyReRoPE, LMInfinite, ReRoPE, ScoreMap, SelfExtend, attend, chunked
from tests.attention import score_reference
from tests.attention.cases import ARRAYS, HEAD_DIM, SCALES, SEQ, SINKS, SLOPES, padded, qkv, shuffled
from tests.attention.cases import packed as packed_documents
from tests.unchecked import unchecked

MAPS: MappingProxyType[str, tuple[ScoreMap, Any]] = MappingProxyType(
    {
        "SelfExtend": (SelfExtend(group=2, window=6), partial(score_reference.self_extend, group=2, window=6)),
        "DualChunk": (DualChunk(chunk=12, local=3), partial(score_reference.dual_chunk, chunk=12, local=3)),
        "ReRoPE": (ReRoPE(window=5), partial(score_reference.rerope, window=5)),
        "LeakyReRoPE": (
            LeakyReRoPE(window=4, factor=2.5),
            partial(score_reference.leaky_rerope, window=4, factor=2.5),
        ),
        "LMInfinite": (
            LMInfinite(window=7, global_tokens=2),
            partial(score_reference.lm_infinite, window=7, global_tokens=2),
        ),
    }
)
SCHEDULE = rj.AttentionTemperature(scale=1.1)(rj.geometric_schedule(6, theta=50.0))
SOFTCAP, ATTENTION_SCALE = 3.0, float(np.float32(1.1))
bad: Any = float
every_map = pytest.mark.parametrize("name", MAPS)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 8 tokens, so that tiles lie inside, across and outside of regions."""
    monkeypatch.setattr(chunked, "block_side", lambda rows: 8)


def pose():
    """A document with a skip, at an offset, and one with several."""
    first = np.concatenate([np.arange(4, 24), np.arange(900, 917)])
    second = np.sort(np.random.default_rng(3).choice(60, SEQ, replace=False))
    return {f"{side}_positions": np.stack([first, second]).astype(np.int32) for side in ("q", "kv")}


def decode():
    """Five queries at the end of a cache, whose last slots are empty; row 1 was padded on the left."""
    kv = np.stack([np.arange(SEQ), np.maximum(np.arange(SEQ) - 9, -1)])
    kv = np.where(np.arange(SEQ) < 30, kv, -1)
    return {"q_positions": kv[:, 25:30].astype(np.int32), "kv_positions": kv.astype(np.int32)}


CASES = MappingProxyType(
    {"packed": packed_documents(), "padded": padded(), "shuffled": shuffled(), "pose": pose(), "decode": decode()}
)


def case(where) -> tuple[dict[str, Any], dict[str, Any]]:
    """Floating arrays and tokens, of one structure for all places so that a program serves several."""
    tokens = CASES[where]
    ones = {side.replace("positions", "segments"): np.ones_like(tokens[side]) for side in tokens if "positions" in side}
    queries = tokens["q_positions"].shape[1]
    floats = qkv(queries=queries, kv_heads=2) | {"sinks": SINKS, "slopes": SLOPES, "scale": SCALES}
    return floats, ones | {name: np.broadcast_to(x, (2, x.shape[1])) for name, x in tokens.items()}


@cache
def expected(name, where):
    floats, tokens = case(where)
    cotangent = np.random.default_rng(1).standard_normal(floats["q"].shape).astype(np.float32)
    out, grads = score_reference.attention(
        floats, SCHEDULE.float64(), MAPS[name][1], cotangent, **tokens,
        **{x: floats[x] for x in ("sinks", "slopes", "scale")}, softcap=SOFTCAP, attention_scale=ATTENTION_SCALE,
    )  # fmt: skip
    return out, grads, cotangent


@partial(jax.jit, static_argnames="score_map")
def made(tokens, score_map):
    return score_map.regions(**tokens, schedule=SCHEDULE)


@partial(jax.jit, static_argnames="backend")
def with_gradients(floats, tokens, regions, cotangent, backend):
    run = partial(attend, **tokens, regions=regions, softcap=SOFTCAP, backend=backend)
    out, back = jax.vjp(lambda floats: run(**floats), floats)
    return out, back(cotangent)[0]


@partial(jax.jit, static_argnames="score_map")
def by_map(floats, tokens, score_map):
    return attend(**floats, **tokens, regions=score_map.regions(**tokens, schedule=SCHEDULE))


@jax.jit
def plainly(floats, tokens):
    return attend(**floats, **tokens)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("where", CASES)
@every_map
def test_values_and_gradients_are_those_of_the_published_rule(name, where, backend):
    floats, tokens = jax.tree.map(jnp.asarray, case(where))
    out, grads, cotangent = expected(name, where)
    found, found_grads = with_gradients(floats, tokens, made(tokens, MAPS[name][0]), jnp.asarray(cotangent), backend)
    np.testing.assert_allclose(found, out, atol=2e-5, rtol=0)
    assert set(found_grads) == set(ARRAYS) == set(grads)
    for argument, grad in found_grads.items():
        np.testing.assert_allclose(grad, grads[argument], atol=1e-4, rtol=1e-5, err_msg=argument)


def test_interleaved_pairs_and_eager_calls_agree_with_the_rule():
    floats, tokens = case("pose")
    for name, (score_map, rule) in MAPS.items():
        regions = score_map.regions(**tokens, schedule=SCHEDULE, layout="interleaved")
        out = attend(**floats, **tokens, softcap=SOFTCAP, regions=regions)
        want = score_reference.attention(
            floats, SCHEDULE.float64(), rule, np.zeros(out.shape), **tokens,
            **{x: floats[x] for x in ("sinks", "slopes", "scale")}, softcap=SOFTCAP,
            attention_scale=ATTENTION_SCALE, layout="interleaved",
        )[0]  # fmt: skip
        np.testing.assert_allclose(out, want, atol=2e-5, rtol=0, err_msg=name)


def test_position_tables_are_the_published_ones():
    first = [1, 1023, 1024, 1025, 5000, 20_000]
    got = SelfExtend(group=8, window=1024).distances(first, [0])[:, 0]
    np.testing.assert_array_equal(got, [1, 1023, 1024, 1024, 1521, 3396])
    chunks = DualChunk(chunk=3072, local=256)
    table = {(100, 50): 50, (2816, 2815): 1, (3116, 2815): 257, (3116, 0): 3072, (9000, 10): 3062, (9000, 2815): 257}
    assert {pair: chunks.distances([pair[0]], [pair[1]]).item() for pair in table} == table
    np.testing.assert_array_equal(ReRoPE(window=512).distances([511, 513], [0])[:, 0], [511, 512])
    assert LeakyReRoPE(window=512, factor=16).distances([1024], [0]).item() == 544


@every_map
def test_distances_are_those_of_the_rule(name):
    score_map, rule = MAPS[name]
    positions = np.arange(70)
    want = [[rule(i, j) if j <= i else None for j in positions] for i in positions]
    np.testing.assert_array_equal(score_map.distances(positions, positions), np.array(want, np.float64))


@every_map
def test_scores_are_plain_inside_the_window_and_not_beyond(name):
    score_map = MAPS[name][0]
    positions = np.arange(200)
    found, plain = score_map.distances(positions, positions), positions[:, None] - positions[None, :]
    near = (plain >= 0) & (plain < score_map.plain_below)
    np.testing.assert_array_equal(found[near], plain[near])
    assert not np.array_equal(found[plain >= 0], plain[plain >= 0])
    # A row that ends inside the window, whatever lies before it: plain attention.
    x: dict[str, Any] = {argument: jnp.asarray(array[:, : score_map.plain_below]) for argument, array in qkv().items()}
    tokens: dict[str, Any] = {f"{side}_positions": jnp.arange(score_map.plain_below)[None] + 77 for side in ("q", "kv")}
    table = rj.rotary_table(SCHEDULE, tokens["q_positions"])
    turned: dict[str, Any] = {"q": rj.rotate(x["q"], table), "k": rj.rotate(x["k"], table), "v": x["v"]}
    np.testing.assert_allclose(by_map(x, tokens, score_map), plainly(turned, tokens), atol=2e-6)


@every_map
def test_every_document_has_the_result_it_has_alone(name):
    """Padded on the left or the right, behind another in a pack, with positions that go on or start again."""
    score_map = MAPS[name][0]
    length, alone = 21, qkv(batch=1, queries=21, keys=21)

    def run(floats, positions, segments):
        tokens: dict[str, Any] = {
            "q_positions": positions,
            "kv_positions": positions,
            "q_segments": segments,
            "kv_segments": segments,
        }
        return by_map(floats, tokens, score_map)

    def placed(before, positions, segments):
        """The document behind `before` other tokens, in a row of 32."""
        rest = 32 - length - before
        noise = qkv(batch=1, queries=32, keys=32, seed=9)
        floats = {x: np.concatenate([noise[x][:, :before], alone[x], noise[x][:, :rest]], axis=1) for x in "qkv"}
        return run(floats, jnp.asarray([positions], jnp.int32), jnp.asarray([segments], jnp.int32))[
            :, before : before + length
        ]

    tokens, ones = [*range(length)], [1] * length
    want = placed(0, [*tokens, *[-1] * 11], [*ones, *[1] * 11])
    rows = {
        "left padding": (11, [-1] * 11 + tokens, [1] * 32),
        "segment 0": (11, [*range(11), *tokens], [0] * 11 + ones),
        "packed": (11, [*range(11), *tokens], [5] * 11 + ones),
        "packed, positions that go on": (11, [*range(32)], [5] * 11 + ones),
        "far along": (0, [p + 100_001 for p in tokens] + [-1] * 11, [1] * 32),
        "in the middle": (5, [*range(5), *tokens, *range(6)], [3] * 5 + ones + [2] * 6),
    }
    for how, (before, positions, segments) in rows.items():
        np.testing.assert_allclose(placed(before, positions, segments), want, atol=2e-5, err_msg=how)


def test_a_leaky_slope_keeps_its_phase_far_out():
    """Distances of millions of tokens, a hundred times slower: as the slowed float64 schedule has them."""
    far = jnp.asarray([[0, 5_000_000, 9_999_999]], jnp.int32)
    x: dict[str, Any] = {name: jnp.asarray(array) for name, array in qkv(batch=1, queries=3, keys=3).items()}
    tokens: dict[str, Any] = {"q_positions": far, "kv_positions": far}
    got = by_map(x, tokens, LeakyReRoPE(window=8, factor=100))
    rule = partial(score_reference.leaky_rerope, window=8, factor=100)
    want = score_reference.attention(
        x, SCHEDULE.float64(), rule, np.zeros(got.shape), softcap=1e9,
        sinks=np.full(4, -1e9), slopes=np.zeros(4), scale=np.full(4, HEAD_DIM**-0.5), attention_scale=ATTENTION_SCALE,
        **{name: np.asarray(p) for name, p in tokens.items()}, q_segments=np.ones((1, 3), int),
        kv_segments=np.ones((1, 3), int),
    )[0]  # fmt: skip
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SelfExtend(group=3, window=8), "`group` must divide `window` = 8"),
        (lambda: SelfExtend(group=0, window=8), "`group` must be from 1 to 2^31 - 1; got 0."),
        (lambda: SelfExtend(group=2, window=bad(8)), "`window` must be an integer; got 8.0."),
        (lambda: DualChunk(chunk=8, local=5), "`local` must be at most half of `chunk` = 8"),
        (lambda: ReRoPE(window=True), "`window` must be an integer; got True."),
        (lambda: LeakyReRoPE(window=8, factor=1), "`factor` must be above 1 and finite; got 1."),
        (lambda: LeakyReRoPE(window=8, factor=1.3), "`factor` must make `window` * `factor` a whole number"),
        (lambda: LeakyReRoPE(window=2**20, factor=2**12), "`factor` must keep `window` * `factor` below 2^31"),
        (lambda: LMInfinite(window=8, global_tokens=0), "`global_tokens` must be from 1"),
    ],
)
def test_what_makes_no_map_is_refused(make, message):
    with unchecked(), pytest.raises((TypeError, ValueError)) as error:
        make()
    assert message in str(error.value)


def test_counts_of_numpy_are_counts():
    counts: dict[str, Any] = {"group": np.int64(2), "window": np.int32(6)}
    with unchecked():
        assert repr(SelfExtend(**counts)) == repr(SelfExtend(group=2, window=6))

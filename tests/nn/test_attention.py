"""The attention block against float64 loops, and what holds of any rotary attention."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from rope_jax.nn.schedules import head_table
from tests.nn.models import PLAIN, drawn, weights
from tests.nn.numpy_decoder import attention
from tests.unchecked import unchecked

EMBED, SEQ = 12, 7
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((2, SEQ, EMBED)), jnp.float32)
POSITIONS = jnp.asarray([[3, 4, 5, 6, 7, 9, 40], [-1, 0, 1, 2, 3, 4, 5]], jnp.int32)
PLAINEST = nn.AttentionConfig(embed=EMBED, heads=4, kv_heads=2, head_dim=8)
VARIANTS = (
    nn.AttentionConfig(embed=16, heads=2),
    PLAINEST,
    nn.AttentionConfig(embed=EMBED, heads=3, kv_heads=1, head_dim=10, layout="interleaved", window=3, bias=True),
    nn.AttentionConfig(embed=EMBED, heads=4, kv_heads=2, head_dim=8, qk_norm=True, softcap=2.0, sinks=True),
)


def block(config=PLAINEST):
    return drawn(lambda: nn.RotaryAttention(config, rngs=nnx.Rngs(0)))


@jax.jit
def output(module, x, schedule, positions, segments=None):
    table = None if schedule is None else rj.rotary_table(schedule, positions)
    return module(x, table, positions=positions, segments=segments)


@pytest.mark.parametrize("config", VARIANTS, ids=["heads", "grouped", "multi-query", "norm"])
def test_block_agrees_with_float64(config):
    module = block(config)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, SEQ, config.embed)), jnp.float32)
    schedule = rj.AttentionTemperature(scale=1.25)(PLAIN)
    got = output(module, x, schedule, POSITIONS)
    sizes = dataclasses.asdict(config) | {"kv_heads": config.kv_count, "head_dim": config.head_width}
    for row in range(2):
        expected = attention(
            np.asarray(x[row], np.float64), weights(module), sizes, schedule.float64(), np.asarray(POSITIONS[row]),
            scale=1.25, window=config.window,
        )  # fmt: skip
        np.testing.assert_allclose(got[row], expected, rtol=0, atol=1e-5)


def test_values_are_never_rotated():
    """A token that sees itself alone gives its own value back, wherever it stands."""
    module = block()
    positions = jnp.asarray([[0], [12_345]], jnp.int32)
    alone = jnp.broadcast_to(X[:1, :1], (2, 1, EMBED))
    rotated = output(module, alone, PLAIN, positions)
    value = module.value(alone[:1]).reshape(1, 1, 2, 8)
    expected = module.out(jnp.repeat(value, 2, axis=2).reshape(1, 1, 32))
    np.testing.assert_allclose(rotated, jnp.broadcast_to(expected, (2, 1, EMBED)), rtol=0, atol=1e-6)


def test_scores_of_identical_tokens_are_toeplitz():
    module = block()
    q, k, _ = module.project(jnp.broadcast_to(X[:1, :1], (1, 6, EMBED)))
    table = rj.rotary_table(PLAIN, jnp.arange(6, dtype=jnp.int32)[None] + 100)
    q, k = rj.rotate(q, table), rj.rotate(k, table)
    for head in range(4):
        scores = np.asarray(q[0, :, head]) @ np.asarray(k[0, :, head // 2]).T
        for offset in range(-5, 6):
            assert np.ptp(np.diagonal(scores, offset)) < 2e-5
        assert np.ptp(scores[0]) > 1e-2


def test_output_depends_on_offsets_only():
    module = block()
    here, far = output(module, X, PLAIN, POSITIONS), output(module, X[:1], PLAIN, POSITIONS[:1] + 10_000_000)
    np.testing.assert_allclose(far, here[:1], rtol=0, atol=1e-5)
    stretched = output(module, X[:1], PLAIN, 2 * POSITIONS[:1])
    assert np.max(np.abs(stretched - here[:1])) > 1e-2


def test_without_positions_attention_is_permutation_equivariant():
    """No rotation, and every token at one position: each sees all."""
    module, nowhere = block(), jnp.zeros((2, SEQ), jnp.int32)
    order = np.random.default_rng(2).permutation(SEQ)
    straight, shuffled = output(module, X, None, nowhere), output(module, X[:, order], None, nowhere)
    np.testing.assert_allclose(shuffled, straight[:, order], rtol=0, atol=2e-6)
    turned = output(module, X[:, order], PLAIN, POSITIONS)
    assert np.max(np.abs(turned - output(module, X, PLAIN, POSITIONS)[:, order])) > 1e-2


def test_order_of_tokens_is_free_when_their_positions_go_along():
    module, order = block(), np.random.default_rng(3).permutation(SEQ)
    straight, shuffled = output(module, X, PLAIN, POSITIONS), output(module, X[:, order], PLAIN, POSITIONS[:, order])
    np.testing.assert_allclose(shuffled, straight[:, order], rtol=0, atol=2e-6)


def test_norm_comes_before_the_rotation():
    """Queries of a normalised block have norm sqrt(head_dim) times the attention scale after it."""
    module = nn.RotaryAttention(dataclasses.replace(PLAINEST, qk_norm=True), rngs=nnx.Rngs(0))
    q, _, _ = module.project(X)
    scaled = rj.AttentionTemperature(scale=1.5)(PLAIN)
    rotated = rj.rotate(q, rj.rotary_table(scaled, POSITIONS))
    np.testing.assert_allclose(jnp.linalg.norm(rotated, axis=-1), 1.5 * 8**0.5, rtol=1e-4)
    assert np.max(np.abs(output(module, X, scaled, POSITIONS) - output(module, X, PLAIN, POSITIONS))) > 1e-2


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_dtype_of_the_input_is_kept(dtype):
    scaled = rj.AttentionTemperature(scale=float(np.float32(1.19)))(PLAIN)
    module = block(VARIANTS[3])
    got = jax.eval_shape(output, module, X.astype(dtype), scaled, POSITIONS)
    assert got.dtype == dtype


def test_heads_with_schedules_of_their_own():
    """The output is a sum over heads, so each kv head must act as it does under its schedule alone."""
    module, other = block(), rj.PositionInterpolation(factor=4.0)(PLAIN)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b])[:, None, None], PLAIN, other)
    got = jax.jit(lambda m: m(X, head_table(both, POSITIONS, 2), positions=POSITIONS))(module)
    kernel, expected = module.out.kernel[...], jnp.zeros_like(X)
    for head, schedule in enumerate((PLAIN, other)):
        rows = (jnp.arange(32) // 16 == head).astype(jnp.float32)[:, None]
        module.out.kernel.set_value(kernel * rows)
        expected = expected + output(module, X, schedule, POSITIONS)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_a_schedule_is_no_table():
    with pytest.raises(TypeError, match=r"`table` must be a RotaryTable.*rotary_table\(schedule, positions\)"):
        block()(X, PLAIN, positions=POSITIONS)


@jax.jit
def extended(module, x, schedule, positions, cache):
    held = cache.reserve(positions, schedule)[0].positions
    kv_table = rj.rotary_table(schedule, held) if cache.keys == "unrotated" else None
    table = rj.rotary_table(schedule, positions)
    return module(x, table, positions=positions, cache=cache, schedule=schedule, kv_table=kv_table)


@pytest.mark.parametrize("keys", ["rotated", "unrotated"])
def test_chunks_through_a_cache_equal_the_whole(keys):
    module = block(dataclasses.replace(PLAINEST, sinks=True, qk_norm=True))
    whole = output(module, X, PLAIN, POSITIONS)
    cache = nn.KVCache.empty(2, SEQ, 2, 8, keys=keys)
    for start, stop in ((0, 5), (5, 6), (6, 7)):
        got, cache = extended(module, X[:, start:stop], PLAIN, POSITIONS[:, start:stop], cache)
        np.testing.assert_allclose(got, whole[:, start:stop], rtol=0, atol=2e-5)


CHANGES: tuple[tuple[str, Any], ...] = (
    *(("embed", 24), ("heads", 2), ("kv_heads", 4), ("head_dim", 6), ("qk_norm", True), ("bias", True)),
    *(("window", 2), ("scale", 2.0), ("softcap", 0.5), ("sinks", True), ("layout", "interleaved")),
    *(("backend", "chunked"), ("norm_epsilon", 0.1), ("scalable_softmax", True)),
)


def test_every_field_reaches_the_output():
    # `sharding` acts on a mesh of several devices alone: tests/eight_devices.
    fields = {field.name for field in dataclasses.fields(nn.AttentionConfig)} - {"sharding"}
    assert {name for name, _ in CHANGES} == fields
    narrow = rj.geometric_schedule(6, theta=100.0)
    program = str(jax.make_jaxpr(output)(block(), X, narrow, POSITIONS))
    before = output(block(), X, narrow, POSITIONS)
    for name, value in CHANGES:
        changes = {name: value} | ({"qk_norm": True} if name == "norm_epsilon" else {})
        config = dataclasses.replace(PLAINEST, **changes)
        module, x = block(config), jnp.ones((2, SEQ, 24)) if name == "embed" else X
        if name == "norm_epsilon":
            before = output(block(dataclasses.replace(PLAINEST, qk_norm=True)), X, narrow, POSITIONS)
        after = output(module, x, narrow, POSITIONS)
        if name == "backend":
            assert str(jax.make_jaxpr(output)(module, x, narrow, POSITIONS)) != program
        else:
            assert after.shape != before.shape or np.max(np.abs(after - before)) > 1e-3, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "`heads` must be a multiple of `kv_heads`; got 5 heads for 2"),
        ({"heads": 8, "kv_heads": 8, "head_dim": None}, "`embed` must be a multiple of `heads`"),
        ({"layout": "split"}, "`layout` must be"),
        ({"backend": "fastest"}, "`backend` must be one of"),
        ({"window": 0}, "`window` must be at least 1; got 0"),
        ({"softcap": 0.0}, "`softcap` must be a positive number"),
        ({"kv_heads": 0}, "`kv_heads` must be at least 1; got 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_at_construction(changes, message):
    with unchecked(), pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(PLAINEST, **changes)


def test_arguments_that_do_not_go_together_are_refused():
    module, table = block(), rj.rotary_table(PLAIN, POSITIONS)

    def call(message, cache, config=None, **arguments):
        with pytest.raises(ValueError, match=re.escape(message)):
            (module if config is None else block(config))(X, table, positions=POSITIONS, cache=cache, **arguments)

    empty = nn.KVCache.empty(2, SEQ, 2, 8)
    call("`segments` must be None", empty, segments=jnp.ones((2, SEQ), jnp.int32), schedule=PLAIN)
    call("`schedule` and no `kv_table`", empty)
    call("`kv_table` must be None without a cache", None, kv_table=table)
    call("`kv_table` must be given with `table`", nn.KVCache.empty(2, SEQ, 2, 8, keys="unrotated"), schedule=PLAIN)
    call("`cache` must have the layout", nn.KVCache.empty(2, SEQ, 2, 8, layout="interleaved"), schedule=PLAIN)
    call("`cache` must keep every key", nn.KVCache.empty(2, SEQ, 2, 8, window=3), schedule=PLAIN)

"""Factors on queries, given or learned, against float64 loops: by position, group, cache, score map and backend."""

import dataclasses
import math
import re
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
from rope_jax.experiment.training.optimizer import _decays
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, drawn, weights
from tests.nn.numpy_decoder import attention
from tests.nn.numpy_decoder import decoder as numpy_decoder
from tests.nn.test_score_maps import MAPS
from tests.unchecked import unchecked

FACTORS = np.random.default_rng(5).uniform(0.5, 3, (2, SEQ)).astype(np.float32)
SSMAX = dataclasses.replace(SMALL, scalable_softmax=True, softcap=3.0, sinks=True, qk_norm=True)
# Llama 4's way: only the layers that do not turn are scaled.
NOPE = {"L": PLAIN, "G": None}
ROWS = jnp.stack([POSITIONS[0], jnp.asarray([-1, -1, *range(8)], jnp.int32)])


@partial(jax.jit, static_argnames="score_map")
def forward(model, schedule, positions, query_scale, token_ids=TOKEN_IDS, segments=None, score_map=None):
    return model(
        token_ids, schedule, positions=positions, segments=segments, query_scale=query_scale, score_map=score_map
    )


@jax.jit
def step(model, token_ids, schedule, positions, cache, query_scale):
    return model(token_ids, schedule, positions=positions, cache=cache, query_scale=query_scale)


def by_hand(model, row, sliding, full, w=None):
    """Logits of one row of `ROWS`, padding left out; `sliding` and `full` are the layers of the two groups."""
    real = np.asarray(ROWS[row]) >= 0
    layers = [
        tuple(part[row, real] if isinstance(part, np.ndarray) and part.ndim == 2 else part for part in layer)
        for layer in (sliding, full, sliding)
    ]
    sizes = dataclasses.asdict(model.config)
    return numpy_decoder(
        np.asarray(TOKEN_IDS[row])[real], w or weights(model), sizes, layers, np.asarray(ROWS[row])[real]
    )


def assert_rows(got, model, sliding, full):
    for row in range(2):
        expected = by_hand(model, row, sliding, full)
        np.testing.assert_allclose(got[row][ROWS[row] >= 0], expected, rtol=0, atol=2e-5)


OMEGA = PLAIN.float64()
TWICE = np.full((2, SEQ), 2.0)
SLIDING, FULL = (OMEGA, 1.0, 4, None), (OMEGA, 1.0, None, None)


@pytest.mark.parametrize("backend", ["reference", "xla", "chunked"])
def test_a_factor_multiplies_all_logits_of_its_group(backend):
    model = decoder(dataclasses.replace(SMALL, backend=backend))
    scaled = forward(model, NOPE, ROWS, {"L": None, "G": jnp.asarray(FACTORS)})
    assert_rows(scaled, model, SLIDING, (None, 1.0, None, None, FACTORS))
    assert np.max(np.abs(scaled - forward(model, NOPE, ROWS, None))) > 1e-2


def test_ssmax_multiplies_by_the_logarithm_of_the_keys_seen():
    """Within windows, too, and before the soft cap; the given factor comes on top."""
    model = decoder(SSMAX)
    assert_rows(forward(model, PLAIN, ROWS, 2.0), model, (*SLIDING, TWICE), (*FULL, TWICE))


def test_score_maps_are_scaled_alike():
    score_map, rule = MAPS["SelfExtend"]
    model = decoder(dataclasses.replace(SMALL, scalable_softmax=True))
    got = forward(model, PLAIN, ROWS, jnp.asarray(FACTORS), score_map=score_map)
    assert_rows(got, model, (*SLIDING, FACTORS), (OMEGA, 1.0, None, rule, FACTORS))


def test_documents_count_their_own_tokens():
    model, half = decoder(SSMAX), SEQ // 2
    segments = jnp.asarray([[5] * half + [2] * half] * 2, jnp.int32)
    twice = jnp.concatenate([TOKEN_IDS[:, :half]] * 2, axis=1)
    logits = forward(model, PLAIN, rj.packed_positions(segments), None, twice, segments)
    np.testing.assert_allclose(logits[:, half:], logits[:, :half], rtol=0, atol=2e-5)


def test_decoding_through_rings_equals_the_whole_forward():
    model, factors = decoder(SSMAX), jnp.asarray(FACTORS)
    whole = forward(model, PLAIN, ROWS, {"L": factors, "G": None})
    cache, start = model.empty_cache(2, SEQ, chunk=3).rerotate(PLAIN), 0
    assert len(cache.parts) == 2
    for stop in (3, 6, *range(7, SEQ + 1)):
        scales = {"L": factors[:, start:stop], "G": None}
        got, cache = step(model, TOKEN_IDS[:, start:stop], PLAIN, ROWS[:, start:stop], cache, scales)
        real = np.asarray(ROWS[:, start:stop] >= 0)
        np.testing.assert_allclose(got[real], whole[:, start:stop][real], rtol=0, atol=2e-5)
        start = stop
    assert int(cache.check().used) == SEQ


def test_factors_are_data():
    model, traces = decoder(), []

    @jax.jit
    def logits(model, query_scale):
        traces.append(jax.tree.structure(query_scale))
        return model(TOKEN_IDS, PLAIN, positions=POSITIONS, query_scale=query_scale)

    rules = (rj.LogN(original_length=2), rj.LogN(original_length=5), jnp.ones_like)
    results = [logits(model, jnp.asarray(rule(POSITIONS), jnp.float32)) for rule in rules]
    assert len(traces) == 1 and np.max(np.abs(results[0] - results[1])) > 1e-3
    np.testing.assert_array_equal(results[2], forward(model, PLAIN, POSITIONS, None))


def test_gradients_are_those_of_float64():
    model, along = decoder(SSMAX), np.random.default_rng(6).standard_normal((SEQ, 13))
    graph, state = nnx.split(model)
    factors = {"L": None, "G": jnp.asarray(FACTORS)}

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def gradient(state, factors):
        logits = nnx.merge(graph, state)(TOKEN_IDS, PLAIN, positions=ROWS, query_scale=factors)
        return jnp.sum(logits[0] * along.astype(np.float32))

    of_state, of_factors = gradient(state, factors)
    learned = of_state["blocks"]["attention"]["scalable_softmax"]["scale"][...]

    def loss(change, where, *, of):
        w, factor = weights(model), FACTORS.astype(np.float64)
        (factor if of == "factor" else w["blocks"]["attention"]["scalable_softmax"]["scale"])[where] += change
        return np.sum(by_hand(model, 0, SLIDING, (*FULL, factor), w) * along)

    for got, of, where in ((of_factors["G"], "factor", (0, 4)), (learned, "scale", (1, 2)), (learned, "scale", (2, 0))):
        expected = (loss(1e-5, where, of=of) - loss(-1e-5, where, of=of)) / 2e-5
        np.testing.assert_allclose(got[where], expected, rtol=1e-4, atol=1e-5)
    assert not np.any(np.asarray(of_factors["G"])[1])


def test_ssmax_starts_as_plain_softmax_and_does_not_decay():
    state = nnx.state(
        nn.RotaryAttention(nn.AttentionConfig(embed=16, heads=2, scalable_softmax=True), rngs=nnx.Rngs(0))
    )
    (start,) = jax.tree.leaves(state["scalable_softmax"])
    assert start.shape == (2,)
    np.testing.assert_allclose(start * np.mean(np.log(np.arange(1, 1025))), 1, rtol=1e-6)
    decays = _decays(nnx.to_pure_dict(state))
    assert decays["query"]["kernel"] and not decays["scalable_softmax"]["scale"]


def test_half_precision_stays():
    model = decoder(dataclasses.replace(SSMAX, dtype="bfloat16"))
    call = partial(nn.Decoder.hidden, positions=POSITIONS, query_scale=jnp.asarray(FACTORS))
    assert jax.eval_shape(call, model, TOKEN_IDS, PLAIN).dtype == jnp.bfloat16


def test_the_block_alone_scales_alike():
    config = nn.AttentionConfig(embed=12, heads=4, kv_heads=2, head_dim=8, window=3, scalable_softmax=True)
    block = drawn(lambda: nn.RotaryAttention(config, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(7).standard_normal((1, SEQ, 12)), jnp.float32)

    @jax.jit
    def output(block, x, factor):
        table = rj.rotary_table(PLAIN, POSITIONS)
        return block(x, table, positions=POSITIONS, query_scale=factor)

    expected = attention(
        np.asarray(x[0], np.float64), weights(block), dataclasses.asdict(config), OMEGA, np.arange(SEQ),
        window=3, query_scale=FACTORS[0],
    )  # fmt: skip
    np.testing.assert_allclose(output(block, x, FACTORS[:1])[0], expected, rtol=0, atol=1e-5)


def test_generation_scales_every_token_as_a_whole_forward_does():
    rule = rj.RopeSpec(8, query_scale=rj.LogN(original_length=3)).logit_scale
    rules = MappingProxyType({"L": None, "G": rule})
    model, steps, prompt = decoder(SSMAX), 3, np.asarray(TOKEN_IDS[:1, :6])
    got = nn.generate(model, prompt, max_new_tokens=steps, schedule=PLAIN, query_scale=rules)
    for new in range(steps):
        ids = np.zeros((2, SEQ), np.int32)
        ids[0, : 6 + new] = [*prompt[0], *got.tokens[0, :new]]
        scales = {"L": None, "G": rule(POSITIONS)}
        last = np.asarray(forward(model, PLAIN, POSITIONS, scales, ids)[0, 5 + new], np.float64)
        assert got.tokens[0, new] == np.argmax(last)
        np.testing.assert_allclose(got.log_probs[0, new], last.max() - math.log(np.sum(np.exp(last))), atol=2e-5)


REFUSED: tuple[Any, ...] = (
    ({"L": None}, ValueError, "`query_scale` must name the layer groups ('L', 'G'); got ('L',)"),
    (
        FACTORS[0],
        ValueError,
        "`query_scale` must be [] or [batch or 1, seq] for tokens [batch, seq] = (2, 10); got (10,)",
    ),
    (FACTORS[:, 1:], ValueError, "`query_scale` must be [] or [batch or 1, seq]"),
    (POSITIONS, TypeError, "`query_scale` must be a floating array; got dtype int32"),
    (rj.LogN(original_length=8), TypeError, "`query_scale` must be a floating array; got LogN(original_length=8)"),
    (True, TypeError, "`query_scale` must be a floating array; got True"),
)


@pytest.mark.parametrize(("query_scale", "error", "message"), REFUSED)
def test_what_is_no_factor_is_refused(query_scale, error, message):
    with unchecked(), pytest.raises(error, match=re.escape(message)):
        decoder()(TOKEN_IDS, PLAIN, positions=POSITIONS, query_scale=query_scale)

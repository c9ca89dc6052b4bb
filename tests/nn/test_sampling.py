"""What is drawn follows the distribution it is drawn from, and misuse of `generate` is refused in one line."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from rope_jax.nn.sampling import sampler
from tests.nn.models import PLAIN, POSITIONS, TOKEN_IDS, decoder, drawn, forward
from tests.unchecked import unchecked

PROBABILITIES = np.array([0.02, 0.4, 0.08, 0.3, 0.2])
DRAWS = 4000


def frequencies(temperature, top_p=1.0):
    draw = sampler(temperature, top_p, jax.random.key(7), (), 5)
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(PROBABILITIES, jnp.float32)), (DRAWS, 5))
    tokens = jax.jit(lambda logits: draw(logits, jnp.int32(3)))(logits)
    return np.bincount(np.asarray(tokens), minlength=5) / DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature):
    expected = PROBABILITIES ** (1 / temperature)
    expected /= expected.sum()
    # Five standard deviations of a frequency.
    np.testing.assert_array_less(np.abs(frequencies(temperature) - expected), 5 * (0.25 / DRAWS) ** 0.5)


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_temperature_near_zero_takes_the_likeliest(top_p):
    """However near: quotients of logits overflow there, and infinities cannot be told apart."""
    logits = jnp.asarray([[1.0, 7.0, 5.0], [-3e5, -2e5, -1e5]])
    for temperature in (1e-3, 1e-30, 2e-38):
        draw = sampler(temperature, top_p, jax.random.key(7), (), 3)
        np.testing.assert_array_equal(draw(logits, jnp.int32(0)), [1, 2])


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, [1]), (0.39, [1]), (0.41, [1, 3]), (0.75, [1, 3, 4]), (0.95, [1, 2, 3, 4])]
)
def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p(top_p, kept):
    found = frequencies(1.0, top_p)
    expected = np.zeros(5)
    expected[kept] = PROBABILITIES[kept] / PROBABILITIES[kept].sum()
    assert np.flatnonzero(found).tolist() == kept
    np.testing.assert_array_less(np.abs(found - expected), 5 * (0.25 / DRAWS) ** 0.5)


def test_a_key_gives_the_same_tokens_however_they_are_computed():
    options: dict[str, Any] = {"max_new_tokens": 6, "schedule": PLAIN, "temperature": 1.5, "top_p": 0.9}
    first, again, chunked, other = (
        nn.generate(decoder(), TOKEN_IDS, rng=jax.random.key(seed), chunk=chunk, **options)
        for seed, chunk in ((0, None), (0, None), (0, 3), (1, None))
    )
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.tokens, chunked.tokens)
    assert np.any(first.tokens != other.tokens)
    # Rows of one text draw differently.
    twice = nn.generate(decoder(), TOKEN_IDS[np.array([0, 0])], rng=jax.random.key(0), **options)
    assert np.any(twice.tokens[0] != twice.tokens[1])
    np.testing.assert_array_equal(twice.tokens[0], first.tokens[0])


def test_log_probs_are_of_the_whole_distribution_at_temperature_one():
    got = nn.generate(
        decoder(), TOKEN_IDS, max_new_tokens=1, schedule=PLAIN, temperature=0.3, top_p=0.5, rng=jax.random.key(0)
    )
    logits = forward(decoder(), TOKEN_IDS, PLAIN, POSITIONS)[:, -1]
    expected = jnp.take_along_axis(jax.nn.log_softmax(logits), got.tokens, axis=1)
    np.testing.assert_allclose(got.log_probs, expected, rtol=0, atol=2e-5)


def test_new_tokens_follow_the_nucleus_of_the_models_own_distribution():
    """Two thousand rows of one token: the logits of a whole forward, tempered, cut and normalised, in float64."""
    rows, temperature, top_p = 2000, 1.7, 0.8
    prompt = np.full((rows, 1), 5)
    got = nn.generate(
        decoder(), prompt, max_new_tokens=1, chunk=1, schedule=PLAIN, temperature=temperature, top_p=top_p,
        rng=jax.random.key(3),
    )  # fmt: skip
    logits = forward(decoder(), jnp.asarray([[5]]), PLAIN, jnp.zeros((1, 1), jnp.int32))[0, 0]
    share = np.exp(np.asarray(logits, np.float64) / temperature)
    share /= share.sum()
    falling = np.argsort(-share)
    kept = falling[: 1 + np.searchsorted(np.cumsum(share[falling]), top_p)]
    expected = np.zeros(13)
    expected[kept] = share[kept] / share[kept].sum()
    found = np.bincount(got.tokens[:, 0], minlength=13) / rows
    assert 2 < len(kept) < 13 and set(np.flatnonzero(found)) <= set(kept)
    np.testing.assert_array_less(np.abs(found - expected), 5 * (0.25 / rows) ** 0.5)


def call(**changes):
    arguments = {"model": decoder(), "token_ids": TOKEN_IDS, "max_new_tokens": 2, "schedule": PLAIN} | changes
    return nn.generate(arguments.pop("model"), arguments.pop("token_ids"), **arguments)


SOME: dict[str, Any] = {"temperature": 1.0, "rng": jax.random.key(0)}
LONG: dict[str, Any] = {"schedule": rj.RopeSpec(8).schedule, "reserve": 2**31 - 5}
REFUSED: tuple[Any, ...] = (
    ({"max_new_tokens": 0}, ValueError, "`max_new_tokens` must be at least 1; got 0"),
    ({"max_new_tokens": 2.0}, TypeError, "`max_new_tokens` must be an integer; got 2.0"),
    ({"chunk": 0}, ValueError, "`chunk` must be at least 1; got 0"),
    ({"temperature": -1.0}, ValueError, "`temperature` must be 0 or a positive finite number in float32; got -1.0"),
    (
        {"temperature": float("nan")},
        ValueError,
        "`temperature` must be 0 or a positive finite number in float32; got nan",
    ),
    ({"temperature": 1e-50}, ValueError, "`temperature` must be 0 or a positive finite number in float32; got 1e-50"),
    ({"temperature": 1e39}, ValueError, "`temperature` must be 0 or a positive finite number in float32; got 1e+39"),
    ({"temperature": 1.0}, ValueError, "`rng` must be given at a temperature above 0; got None"),
    ({"temperature": 1.0, "rng": 3}, TypeError, "`rng` must be one key of jax.random; got int"),
    ({"temperature": 1.0, "rng": jax.random.PRNGKey(0)}, TypeError, "`rng` must be one key of jax.random; got uint32"),
    ({**SOME, "top_p": 0.0}, ValueError, "`top_p` must be above 0 and at most 1; got 0.0"),
    ({**SOME, "top_p": 1.5}, ValueError, "`top_p` must be above 0 and at most 1; got 1.5"),
    ({"top_p": 0.9}, ValueError, "`top_p` must be 1 at temperature 0, where nothing is drawn; got 0.9"),
    ({"reserve": -1}, ValueError, "`reserve` must be at least 0; got -1"),
    ({"reserve": 1.5}, TypeError, "`reserve` must be an integer or None; got 1.5"),
    (LONG, ValueError, "`reserve` must keep the length of a request within 2^31 - 1; got 2147483643"),
    ({"end_ids": (13,)}, ValueError, "`end_ids` must be from 0 to vocab - 1 = 12; got (13,)"),
    ({"end_ids": 3}, TypeError, "`end_ids` must be a sequence of integers; got 3"),
    ({"on_schedule_change": "rotate"}, ValueError, "`on_schedule_change` must be one of recompute, keep"),
    ({"model": None}, TypeError, "`model` must be a Decoder, or have one with its schedules; got NoneType"),
    ({"schedule": "model"}, ValueError, "`schedule` must be given for a Decoder, which has none"),
    ({"schedule": "YaRN()"}, ValueError, "`schedule` must be a schedule, a rule that gives one, or"),
    ({"schedule": rj.RopeSpec(8)}, TypeError, "`schedule` must hold FrequencySchedule or None; got RopeSpec"),
    ({"schedule": {"L": PLAIN}}, ValueError, "`schedule` must name the layer groups ('L', 'G')"),
    (
        {"schedule": lambda length: rj.RopeSpec(8).schedule(length[:, 0])},
        ValueError,
        "`schedule` must give a schedule for every length it is asked for, with leading axes (2, 2)",
    ),
    (
        {"query_scale": jnp.ones((1, 1))},
        TypeError,
        "`query_scale` must be a rule on positions, a dict of them by layer",
    ),
    (
        {"query_scale": type("Rule", (), {"__hash__": None, "__call__": lambda self, positions: None})()},
        TypeError,
        "`query_scale` must be hashable, since it is part of the program; got Rule.",
    ),
    ({"score_map": [rj.ReRoPE(window=4)]}, TypeError, "`score_map` must be hashable, since it is part of the program"),
    ({"token_ids": TOKEN_IDS + 12}, ValueError, "`token_ids` must be from 0 to vocab - 1 = 12"),
    ({"token_ids": [[1, 2], [3]]}, ValueError, "`token_ids` must be rows of one length; got rows of different lengths"),
    ({"token_ids": [[]]}, ValueError, "`token_ids` must be [batch, seq], neither empty; got shape (1, 0)"),
    ({"token_ids": TOKEN_IDS[0]}, ValueError, "`token_ids` must be [batch, seq], neither empty; got shape (10,)"),
    ({"positions": np.arange(9)[None]}, ValueError, "`positions` must be [batch or 1, seq] for `token_ids`"),
    ({"positions": np.arange(10)[None] // 2}, ValueError, "`positions` must rise from token to token; got 0 after 0"),
    ({"positions": np.array([[*range(9), 3]])}, ValueError, "`positions` must rise from token to token; got 3 after 8"),
    (
        {"positions": np.stack([np.arange(10), np.full(10, -1)])},
        ValueError,
        "`positions` must mark at least one token of every row as real; got nothing but padding in rows [1]",
    ),
    (
        {"positions": np.arange(10)[None] + 2**31 - 11},
        ValueError,
        "`max_new_tokens` must keep positions within 2^31 - 1; got 2 after position 2147483646",
    ),
)


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_misuse_is_refused_in_one_line(changes, error, message):
    with unchecked(), pytest.raises(error, match=rf"\A[^\n]*{re.escape(message)}[^\n]*\Z"):
        call(**changes)


def test_generation_is_not_for_jit():
    with pytest.raises(TypeError, match="`token_ids` must be known; got a traced array"):
        jax.jit(lambda ids: nn.generate(decoder(), ids, max_new_tokens=1, schedule=PLAIN).tokens)(TOKEN_IDS)


def test_weights_that_have_diverged_are_reported():
    model = drawn(lambda: nn.Decoder(decoder().config, rngs=nnx.Rngs(0)))
    model.norm.scale[...] = jnp.full_like(model.norm.scale[...], jnp.nan)
    with pytest.raises(ValueError, match="`model` must give finite logits; got nan for new token 0 of row 0"):
        call(model=model)

"""Pairs that turn by several position streams (m-RoPE) in the decoder: against float64, through the cache, refusals."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import nn
from rope_jax.nn.schedules import head_table
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, weights
from tests.nn.numpy_decoder import decoder as numpy_decoder
from tests.unchecked import unchecked

CONFIG = dataclasses.replace(SMALL, pair_axes=[0, 1, 2, 0])
# Two tokens of text, an image of 2 x 3 patches, two of text after its largest position; row 1 is text alone.
IMAGE = [[0, 1, *[2] * 6, 5, 6], [0, 1, 2, 2, 2, 3, 3, 3, 5, 6], [0, 1, *[2, 3, 4] * 2, 5, 6]]
STREAMS = jnp.asarray([[stream, list(range(SEQ))] for stream in IMAGE], jnp.int32)


@jax.jit
def forward(model, schedule, streams):
    return model(TOKEN_IDS, schedule, positions=POSITIONS, streams=streams)


@jax.jit
def step(model, token_ids, schedule, positions, streams, cache):
    return model(token_ids, schedule, positions=positions, streams=streams, cache=cache)


def test_logits_agree_with_float64():
    model = decoder(CONFIG)
    got = forward(model, {"L": PLAIN, "G": rj.AttentionTemperature(scale=1.25)(PLAIN)}, STREAMS)
    sliding, full = (PLAIN.float64(), 1.0, 4), (PLAIN.float64(), 1.25, None)
    for row in range(2):
        expected = numpy_decoder(
            np.asarray(TOKEN_IDS[row]), weights(model), dataclasses.asdict(model.config), [sliding, full, sliding],
            np.arange(SEQ), streams=np.asarray(STREAMS[:, row]),
        )  # fmt: skip
        np.testing.assert_allclose(got[row], expected, rtol=0, atol=1e-5 * np.max(np.abs(expected)))


def test_text_turns_as_by_one_stream():
    model = decoder(CONFIG)
    text = forward(model, PLAIN, None)
    np.testing.assert_allclose(forward(model, PLAIN, STREAMS)[1], text[1], rtol=0, atol=2e-6)
    np.testing.assert_allclose(forward(decoder(), PLAIN, None), text, rtol=0, atol=2e-6)
    assert np.max(np.abs(forward(model, PLAIN, STREAMS)[0] - text[0])) > 1e-2


def test_a_schedule_per_row_and_per_head_turns_by_streams():
    axes = (0, 1, 2, 0)
    plain = rj.rotary_table(PLAIN, STREAMS, pair_axes=axes)
    rows = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2)[:, None], PLAIN)
    heads = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2)[:, None, None], PLAIN)
    np.testing.assert_array_equal(head_table(rows, STREAMS, 2, axes).sin, plain.sin)
    np.testing.assert_array_equal(head_table(rows, STREAMS[:, :1], 2, axes).sin, plain.sin[jnp.zeros(2, int)])
    by_head = head_table(heads, STREAMS, 2, axes)
    np.testing.assert_allclose(by_head.sin, jnp.stack([plain.sin] * 2, axis=-2), rtol=0, atol=1e-6)


def test_decoding_goes_on_after_the_largest_position_of_an_image():
    """The stream of a new token is not its place in the cache."""
    model, whole = decoder(CONFIG), forward(decoder(CONFIG), PLAIN, STREAMS)
    cache, start = model.empty_cache(2, SEQ).rerotate(PLAIN), 0
    for stop in (4, 8, 9, 10):
        here = slice(start, stop)
        got, cache = step(model, TOKEN_IDS[:, here], PLAIN, POSITIONS[:, here], STREAMS[:, :, here], cache)
        np.testing.assert_allclose(got, whole[:, here], rtol=0, atol=2e-5)
        start = stop
    with pytest.raises(ValueError, match=re.escape("`keys` must have turned by one position each to be rerotated")):
        cache.rerotate(rj.PositionInterpolation(factor=2.0)(PLAIN))


SELF_EXTEND = rj.SelfExtend(group=2, window=4)
REFUSED: tuple[Any, ...] = (
    (SMALL, STREAMS, {}, "`streams` must be None for a config without `pair_axes`"),
    (CONFIG, STREAMS[:2], {}, "`streams` must be [axes, batch or 1, seq], at least 3 axes"),
    (CONFIG, STREAMS[:, 0], {}, "`streams` must be [axes, batch or 1, seq], at least 3 axes"),
    (CONFIG, STREAMS[:, :, 1:], {}, "`streams` must be [axes, batch or 1, seq], at least 3 axes"),
    (CONFIG, STREAMS, {"score_map": SELF_EXTEND}, "`streams` must come without a `score_map`"),
    (CONFIG, STREAMS, {"keys": "unrotated"}, "`streams` must come without a `score_map` and with a cache of rotated"),
)


@pytest.mark.parametrize(("config", "streams", "changes", "message"), REFUSED)
def test_streams_that_nothing_could_follow_are_refused(config, streams, changes, message):
    model, changes = decoder(config), dict(changes)
    if "keys" in changes:
        changes = {"cache": model.empty_cache(2, SEQ, keys=changes["keys"])}
    with unchecked(), pytest.raises(ValueError, match=re.escape(message)):
        model(TOKEN_IDS, PLAIN, positions=POSITIONS, streams=streams, **changes)


def test_as_many_axes_as_pairs():
    with pytest.raises(ValueError, match="`pair_axes` must name for each of the 3 pairs"):
        decoder(CONFIG)(TOKEN_IDS, rj.geometric_schedule(6), positions=POSITIONS, streams=STREAMS)
    assert nn.DecoderConfig(vocab=8, embed=8, layers=1, heads=1, pair_axes=[0, 1]).pair_axes == (0, 1)

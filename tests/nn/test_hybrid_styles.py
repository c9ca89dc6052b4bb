"""Stacks as published models have them, whole: against float64 NumPy, token by token through their caches, padded."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import nn
from rope_jax.logit_scales import Llama4QueryScale
from tests.nn import numpy_decoder
from tests.nn.models import POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, weights

LOCAL, GLOBAL = rj.geometric_schedule(8, theta=10.0), rj.geometric_schedule(8, theta=1000.0)
STRETCHED = rj.YaRN(factor=4.0, original_length=8, beta_fast=2.0)
TEMPERATURE = Llama4QueryScale(scale=0.5, floor=3)

# The config, the schedule of every layer group, and the rule that scales the queries of some.
STYLES: dict[str, Any] = {
    "Gemma 3": (
        {"layers": 6, "pattern": "LLLLLG", "windows": {"L": 3}, "qk_norm": True, "norm_placement": "both"},
        {"L": LOCAL, "G": rj.PositionInterpolation(factor=8.0)(GLOBAL)},
        {},
    ),
    "gpt-oss": (
        {"layers": 4, "pattern": "LG", "windows": {"L": 3}, "sinks": True, "bias": ("qkv", "out")},
        {"L": STRETCHED(GLOBAL), "G": STRETCHED(GLOBAL)},
        {},
    ),
    "Llama 4": (
        {"layers": 4, "pattern": "RRRN", "windows": {"R": 4}},
        {"R": LOCAL, "N": None},
        {"N": TEMPERATURE},
    ),
}


def built(name):
    changes, schedules, rules = STYLES[name]
    return decoder(dataclasses.replace(SMALL, **changes)), schedules, rules


@jax.jit
def logits_of(model, token_ids, schedules, positions, query_scale):
    return model(token_ids, schedules, positions=positions, query_scale=query_scale)


def forward(model, token_ids, schedules, rules, positions):
    """Both rows, with the factors of every layer group."""
    factors = {group: rules[group](positions) if group in rules else None for group in model.config.groups}
    return np.asarray(logits_of(model, token_ids, schedules, positions, factors))


def by_hand(model, schedules, rules, row):
    """The logits of a row whose tokens are all real."""
    config = model.config
    places = np.arange(SEQ)
    # 1 + scale ln(1 + floor((p + 1) / floor))
    warm = 1 + 0.5 * np.log(1 + np.floor((places + 1) / 3))
    layers = []
    for group in config.layer_groups:
        schedule, window = schedules[group], dict(config.windows).get(group)
        omega = None if schedule is None else schedule.float64()
        scale = 1.0 if schedule is None else float(schedule.attention_scale)
        layers.append((omega, scale, window, None, warm if group in rules else None))
    sizes = dataclasses.asdict(config)
    return numpy_decoder.decoder(np.asarray(TOKEN_IDS[row]), weights(model), sizes, layers, places.tolist())


@pytest.mark.parametrize("name", STYLES)
def test_a_style_is_what_its_parts_say(name):
    model, schedules, rules = built(name)
    got = forward(model, TOKEN_IDS, schedules, rules, np.repeat(POSITIONS, 2, axis=0))
    np.testing.assert_allclose(got[1], by_hand(model, schedules, rules, 1), rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", STYLES)
def test_generating_in_a_style_equals_its_whole_forward(name):
    """Rows of two lengths, read in chunks of three: a ring for the sliding layers and every token for the others."""
    model, schedules, rules = built(name)
    positions = np.array([[-1, -1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]], np.int32)
    prompt = np.asarray(TOKEN_IDS)[:, :8]
    rule = {group: rules.get(group) for group in model.config.groups} if rules else None
    new = nn.generate(
        model, prompt, positions=positions, max_new_tokens=2, chunk=3, schedule=schedules, query_scale=rule
    )
    tokens = np.concatenate([prompt, new.tokens], axis=1)
    whole = forward(model, tokens, schedules, rules, np.concatenate([positions, new.positions], axis=1))[:, -3:-1]
    np.testing.assert_array_equal(np.argmax(whole, axis=-1), new.tokens)
    log_probs = jax.nn.log_softmax(whole)
    chosen = np.take_along_axis(np.asarray(log_probs), new.tokens[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(new.log_probs, chosen, rtol=0, atol=2e-5)
    assert np.array_equal(new.positions, [[5, 6], [8, 9]])

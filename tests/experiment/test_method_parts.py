"""Score maps and logit scales as methods of a sweep: what they build, how far they reach, where they are refused."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax.attention.score_maps import SCORE_MAPS
from rope_jax.experiment import evaluate
from rope_jax.experiment.methods import parse_method
from rope_jax.experiment.plan import plan
from tests.experiment.tiny import passkey_config
from tests.nn.models import SMALL, decoder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SelfExtend()", rj.SelfExtend(group=8, window=32)),
        ("SelfExtend(window=16)", rj.SelfExtend(group=8, window=16)),
        ("SelfExtend(group=4)", rj.SelfExtend(group=4, window=32)),
        ("DualChunk()", rj.DualChunk(chunk=48, local=4)),
        ("ReRoPE()", rj.ReRoPE(window=32)),
        ("LeakyReRoPE()", rj.LeakyReRoPE(window=32, factor=7.0)),
        ("LMInfinite(global_tokens=4)", rj.LMInfinite(window=64, global_tokens=4)),
        ("chain(YaRN(), ReRoPE(), LogN())", rj.ReRoPE(window=32)),
        ("YaRN()", None),
    ],
)
def test_builds_the_map(text, expected):
    assert parse_method(text).score_map(factor=4.0, original_length=64) == expected


@pytest.mark.parametrize("name", SCORE_MAPS)
@pytest.mark.parametrize("factor", [1.0, 2.0, 16.0])
def test_filled_in_maps_stay_within_the_trained_length(name, factor):
    """Every distance that a filled-in map rotates by was seen in training, but for those without a far rule."""
    score_map, length = parse_method(f"{name}()").score_map(factor=factor, original_length=64), int(factor * 64)
    if score_map is None:
        # Leaky ReRoPE with nothing to slow down.
        assert (name, factor) == ("LeakyReRoPE", 1.0)
        return
    distances = score_map.distances(np.arange(length), np.arange(length))
    assert np.nanmax(distances) <= 64
    np.testing.assert_array_equal(distances[:16, 0], np.arange(16))


def test_parts_do_not_mix_up():
    method = parse_method("chain(YaRN(), SelfExtend(), LogN())")
    assert method.transform(factor=4.0, original_length=64) == rj.YaRN(factor=4.0, original_length=64, beta_fast=4.0)
    assert method.query_scale(original_length=64) == rj.LogN(original_length=64)
    assert not method.frequencies_only and method.takes_factor
    assert method.text(original_length=64) == "chain(YaRN(beta_fast=4.0), SelfExtend(window=32), LogN())"
    assert parse_method("SelfExtend()").transform(factor=4.0, original_length=64) == rj.Identity()
    assert not parse_method("ReRoPE()").takes_factor and parse_method("LeakyReRoPE()").takes_factor


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chain(SelfExtend(), ReRoPE())", "at most one score map; got SelfExtend and ReRoPE"),
        ("chain(LogN(), LogN())", "at most one logit scale; got LogN and LogN"),
        ("SelfExtent()", "'SelfExtend'"),
        ("SelfExtend(groups=2)", r"known keywords; got 'groups'.*'group'"),
    ],
)
def test_refuses(text, message):
    with pytest.raises(ValueError, match=message):
        parse_method(text)


def test_plan_refuses_what_cannot_be_built_or_tuned(tmp_path):
    tiny = passkey_config(tmp_path)
    broken = dataclasses.replace(tiny.sweep, methods=("SelfExtend(group=3, window=8)",))
    with pytest.raises(ValueError, match=r"`sweep\.methods\[0\]`, SelfExtend\(group=3, window=8\): .*`group`"):
        plan(dataclasses.replace(tiny, sweep=broken))
    tuned = dataclasses.replace(tiny.finetune, steps=2, methods=("SelfExtend()",))
    with pytest.raises(ValueError, match=r"`finetune\.methods` must edit frequencies alone; got 'SelfExtend\(\)'"):
        plan(dataclasses.replace(tiny, finetune=tuned))


@partial(jax.jit, static_argnames="score_map")
def forward(model, token_ids, schedule, positions, *, score_map=None, query_scale=None):
    return model(token_ids, schedule, positions=positions, score_map=score_map, query_scale=query_scale)


def test_scores_are_those_of_the_decoder_with_the_map():
    model = decoder(dataclasses.replace(SMALL, pattern=("all",), windows=()))
    graphdef, params = nnx.split(model)
    schedule, score_map, rule = (
        {"all": rj.geometric_schedule(8, theta=100.0)},
        rj.ReRoPE(window=4),
        rj.LogN(original_length=4),
    )
    step = evaluate.scoring_step(graphdef, 64)
    tokens = np.random.default_rng(0).integers(0, SMALL.vocab, (2, 13)).astype(np.int32)
    positions = jnp.arange(12, dtype=jnp.int32)[None]
    plain = evaluate.score(step, params, schedule, tokens, 2)[0]
    for settings in ({"score_map": score_map}, {"query_scale": rule}, {"score_map": score_map, "query_scale": rule}):
        losses = evaluate.score(step, params, schedule, tokens, 2, **settings)[0]
        given = settings | ({"query_scale": rule(positions)} if "query_scale" in settings else {})
        logits = np.asarray(forward(model, tokens[:, :-1], schedule, positions, **given), np.float64)
        chosen = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        np.testing.assert_allclose(losses, np.log(np.exp(logits).sum(axis=-1)) - chosen, rtol=0, atol=1e-5)
        np.testing.assert_allclose(losses[:, :4], plain[:, :4], rtol=0, atol=1e-5)
        assert np.max(np.abs(losses[:, 5:] - plain[:, 5:])) > 1e-3

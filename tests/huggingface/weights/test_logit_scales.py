"""Logit scales of a rope in a loaded model: temperatures by position, and a factor on all logits."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import nn
from rope_jax.logit_scales import Llama4QueryScale
from tests.huggingface.weights.families import random_model

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

IDS = np.random.default_rng(1).integers(0, 20, (2, 6))


def test_the_scales_of_a_rope_reach_the_queries() -> None:
    """Per layer group: a factor on its queries is the same as that factor on the kernel that makes them."""
    model = random_model("smollm3")
    plain, ids = model.rope.specs["rope"], np.asarray(IDS)
    assert plain is not None
    still = dataclasses.replace(plain, transform=rj.Drop(), query_scale=Llama4QueryScale(scale=0.5, floor=2))
    scaled = dataclasses.replace(plain, softmax_scale=1.5, query_scale=rj.LogN(original_length=2))
    rope = dataclasses.replace(model.rope, specs={"rope": scaled, "nope": still})
    places = np.arange(6)
    wanted = {
        "rope": 1.5 * np.maximum(np.log(places + 1) / np.log(2), 1),
        "nope": 1 + 0.5 * np.log(1 + np.floor((places + 1) / 2)),
    }
    found: Any = model.query_scales(jnp.arange(6)[None], rope)
    for group, scale in found.items():
        np.testing.assert_allclose(scale, wanted[group][None], rtol=1e-6)
    given = {group: jnp.asarray(scale[None], jnp.float32) for group, scale in wanted.items()}
    by_hand = model.decoder(ids, model.schedules(), positions=places[None], query_scale=given)
    np.testing.assert_allclose(model.logits(ids, rope=rope), by_hand, atol=2e-5)
    assert np.max(np.abs(model.logits(ids, rope=rope) - model.logits(ids))) > 1e-3
    # Padding in front moves no position, and so no factor.
    row = model.logits(ids[:1], [[-1, -1, 0, 1, 2, 3]], rope=rope)[0, 2:]
    np.testing.assert_allclose(row, model.logits(ids[0, 2:], rope=rope), atol=2e-5)
    assert set(model.query_scales(jnp.arange(6)[None]).values()) == {None}


def test_generation_applies_the_scales_of_the_model() -> None:
    """By default, and only those that are there: every token is that of a whole forward."""
    model = random_model("llama", num_hidden_layers=1)
    assert model.query_rules() is None
    (plain,) = model.rope.specs.values()
    assert plain is not None
    spec = dataclasses.replace(plain, softmax_scale=2.0, query_scale=rj.LogN(original_length=2))
    scaled = dataclasses.replace(model, rope=dataclasses.replace(model.rope, specs={"all": spec}))
    assert scaled.query_rules() == {"all": spec.logit_scale}
    new = nn.generate(scaled, IDS, max_new_tokens=2)
    ids = np.concatenate([IDS, new.tokens], axis=1)
    for step in range(2):
        last = np.asarray(scaled.logits(ids, positions=np.where(np.arange(8) < 6 + step, np.arange(8), -1)), np.float64)
        last = last[:, 5 + step]
        np.testing.assert_array_equal(new.tokens[:, step], last.argmax(axis=-1))
        log_sum = np.log(np.sum(np.exp(last), axis=-1))
        np.testing.assert_allclose(new.log_probs[:, step], last.max(axis=-1) - log_sum, atol=2e-5)
    bare = nn.generate(scaled, IDS, max_new_tokens=2, query_scale=None)
    np.testing.assert_array_equal(bare.log_probs, nn.generate(model, IDS, max_new_tokens=2).log_probs)
    assert np.max(np.abs(bare.log_probs - new.log_probs)) > 1e-3
    with pytest.raises(ValueError, match=r"`query_scale` must be a rule, .* got 'own'"):
        nn.generate(scaled, IDS, max_new_tokens=1, query_scale="own")

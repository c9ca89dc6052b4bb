"""The attention statistics against NumPy, and against the decoder's own forward."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from rope_jax import nn
from rope_jax.experiment.training.attention_statistics import attention_statistics
from rope_jax.schedule import geometric_schedule

CONFIG = nn.DecoderConfig(
    vocab=16, embed=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=16, pattern="LG", windows=(("L", 3),), sinks=True
)
SCHEDULES = {"L": geometric_schedule(8), "G": geometric_schedule(8, theta=100.0)}


def expected(model, row):
    """Largest logit and mean entropy by layer, with loops, in float64."""
    config, found = model.config, []
    positions, segments = np.asarray(row["positions"][0]), np.asarray(row["segments"][0])
    captured = hidden_inputs(model, row)
    for index, group in enumerate(config.layer_groups):
        block = jax.tree.map(lambda leaf, index=index: leaf[index], model.blocks)
        q, k, _ = (np.asarray(part[0], np.float64) for part in block.attention.project(captured[index]))
        angles = positions[:, None] * SCHEDULES[group].float64()
        q, k = turned(q, angles), np.repeat(turned(k, angles), 2, axis=1)
        sinks = np.asarray(block.attention.sinks[...], np.float64)
        window = dict(config.windows).get(group, 10**9)
        logits, entropies = [], []
        for head in range(config.heads):
            for i in np.flatnonzero(segments):
                seen = [
                    j
                    for j in range(len(positions))
                    if segments[j] == segments[i] and 0 <= positions[i] - positions[j] < window
                ]
                z = np.array([q[i, head] @ k[j, head] / np.sqrt(8) for j in seen])
                logits.append(z.max())
                whole = np.append(z, sinks[head])
                weights = np.exp(whole - whole.max())
                weights /= weights.sum()
                entropies.append(-(weights * np.log(weights)).sum())
        found.append((max(logits), np.mean(entropies)))
    return np.array(found)


def turned(heads, angles):
    first, second = heads[..., :4], heads[..., 4:]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def hidden_inputs(model, row):
    """What the attention of each layer reads. All norms have scale 1, so a shorter decoder's last one is the next's."""
    x = model._embed(row["inputs"], row["positions"], row["segments"] == 0)
    shorter = nn.Decoder(dataclasses.replace(CONFIG, layers=1, pattern="L"), rngs=nnx.Rngs(0))
    shorter.blocks, shorter.embedding = jax.tree.map(lambda leaf: leaf[:1], model.blocks), model.embedding
    after = shorter.hidden(row["inputs"], {"L": SCHEDULES["L"]}, positions=row["positions"], segments=row["segments"])
    return [model.norm(x), after]


@pytest.fixture(scope="module")
def case():
    model = nn.Decoder(CONFIG, rngs=nnx.Rngs(3))
    random = np.random.default_rng(0)
    sinks = model.blocks.attention.sinks
    assert sinks is not None
    sinks[...] = jax.numpy.asarray(random.normal(size=(2, 4)).astype(np.float32))
    row = {
        "inputs": random.integers(0, 16, (2, 10)).astype(np.int32),
        "positions": np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, -1]] * 2, np.int32),
        "segments": np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]] * 2, np.int32),
    }
    return model, row


def test_the_numbers_are_those_of_the_definition(case):
    model, row = case
    graphdef, params = nnx.split(model)
    found = jax.jit(attention_statistics, static_argnums=0)(graphdef, params, SCHEDULES, row)
    one = {name: jax.numpy.asarray(value[:1]) for name, value in row.items()}
    table = expected(model, one)
    assert np.allclose(found["largest_logit"], table[:, 0], atol=1e-5)
    assert np.allclose(found["entropy"], table[:, 1], atol=1e-5)

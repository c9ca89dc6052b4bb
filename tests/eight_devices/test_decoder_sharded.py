"""A whole decoder on eight devices: the loss and every gradient of one device, and what cannot be divided."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from rope_jax.attention import Sharding
from tests.eight_devices.meshes import dealt_out, mesh
from tests.eight_devices.test_context_parallel import ROWS, SEQ, SPECS, packed
from tests.nn.models import drawn

CONFIG = nn.DecoderConfig(
    vocab=13, embed=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=16, pattern="LG", windows={"L": 4}, sinks=True
)


@functools.cache
def batch():
    """Token ids, targets, positions and segments, and a schedule for every token's document."""
    ids, targets = np.random.default_rng(0).integers(0, 13, (2, ROWS, SEQ)).astype(np.int32)
    positions, segments = packed()
    return {"ids": ids, "targets": targets, "positions": positions, "segments": segments}


def lengths():
    return rj.lengths(batch()["positions"], batch()["segments"])


@functools.cache
def parameters():
    return nnx.split(drawn(lambda: nn.Decoder(CONFIG, rngs=nnx.Rngs(0))))


def loss_and_gradients(config, state, schedule, batch):
    graph = nnx.split(nnx.eval_shape(lambda: nn.Decoder(config, rngs=nnx.Rngs(0))))[0]

    def loss(state):
        model = nnx.merge(graph, state)
        logits = model(batch["ids"], schedule, positions=batch["positions"], segments=batch["segments"])
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["targets"][..., None], axis=-1))

    return jax.value_and_grad(loss)(state)


@functools.cache
def on_one():
    schedule = SPECS["dynamic NTK"].schedule(length=lengths())
    return jax.jit(functools.partial(loss_and_gradients, CONFIG))(parameters()[1], schedule, batch())


@pytest.mark.parametrize(
    ("name", "form", "order", "remat"),
    [
        ("2 x 4", "all_gather", "zigzag", True),
        ("tensor x context", "ring", "zigzag", True),
        pytest.param("fsdp x context", "ring", "contiguous", False, marks=pytest.mark.slow),
        pytest.param("8 x 1", "all_gather", "contiguous", False, marks=pytest.mark.slow),
    ],
)
def test_the_loss_and_every_gradient_are_those_of_one_device(name, form, order, remat):
    config = dataclasses.replace(CONFIG, sharding=Sharding(form=form, order=order), remat=remat)
    schedule = SPECS["dynamic NTK"].schedule(length=dealt_out(lengths(), SEQ, name, order))
    with mesh(name):
        run = jax.jit(functools.partial(loss_and_gradients, config))
        found = run(parameters()[1], schedule, dealt_out(batch(), SEQ, name, order))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, on_one())


def test_hidden_states_stay_with_their_tokens():
    """No device gathers the hidden states of whole rows."""
    config = dataclasses.replace(CONFIG, sharding=Sharding(), dtype="bfloat16", layers=2)
    model = nnx.eval_shape(lambda: nn.Decoder(config, rngs=nnx.Rngs(0)))
    with mesh("1 x 8"):
        place = jax.sharding.PartitionSpec(None, "context")
        graph, state = nnx.split(model)

        def hidden(state, ids, positions):
            return nnx.merge(graph, state).hidden(ids, SPECS["plain"].schedule(), positions=positions)

        ids = jax.ShapeDtypeStruct((1, 128), jnp.int32)
        run = jax.jit(hidden, in_shardings=(None, place, place), out_shardings=place)
        text = run.lower(state, ids, ids).compile().as_text() or ""
    gathered = re.findall(r"= (\S+?)\{\S* all-gather(?:-start)?\(", text)
    assert gathered and not [shape for shape in gathered if shape.endswith("[1,128,16]")], gathered


def test_a_cache_leaves_the_sequence_whole():
    """Rows and heads may be divided while decoding."""
    config = dataclasses.replace(CONFIG, sharding=Sharding())
    model = drawn(lambda: nn.Decoder(config, rngs=nnx.Rngs(0)))
    plain = drawn(lambda: nn.Decoder(CONFIG, rngs=nnx.Rngs(0)))
    ids, positions = batch()["ids"][:, :3], np.arange(3, dtype=np.int32)[None]

    @jax.jit
    def decode(model, ids):
        cache = model.empty_cache(ROWS, 4)
        return model(ids, SPECS["plain"].schedule(), positions=positions, cache=cache)[0]

    want = decode(plain, ids)
    with mesh("4 x 2"), pytest.raises(ValueError, match="`sharding` must leave the sequence whole with a cache; got 2"):
        jax.eval_shape(decode, model, ids)
    with mesh("data x tensor"):
        np.testing.assert_allclose(decode(model, ids), want, atol=1e-5)

"""Small models and their jitted forwards, shared by the tests of this folder: compiling is what takes the time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import rope_jax as rj
from rope_jax import nn

SMALL = nn.DecoderConfig(
    vocab=13, embed=16, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=16, pattern="LG", windows=(("L", 4),), unroll=1
)
PLAIN = rj.geometric_schedule(8, theta=100.0)
SEQ = 10
TOKEN_IDS = jnp.asarray(np.random.default_rng(0).integers(0, 13, (2, SEQ)), jnp.int32)
POSITIONS = jnp.arange(SEQ, dtype=jnp.int32)[None]


def drawn(make):
    """The module that `make` makes, with parameters drawn on the host: initialisers compile, op by op.

    Norm scales lie around one; all else has what initialisers leave at zero, so that biases and sinks act.
    """
    graph, shapes = nnx.split(nnx.eval_shape(make))

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        noise = np.random.default_rng(sum(map(ord, name))).standard_normal(leaf.shape)
        return jnp.asarray(("scale" in name) + 0.4 * noise, leaf.dtype)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, shapes))


@functools.cache
def decoder(config=SMALL):
    """A model of that configuration."""
    return drawn(lambda: nn.Decoder(config, rngs=nnx.Rngs(0)))


@jax.jit
def forward(model, token_ids, schedule, positions, segments=None):
    return model(token_ids, schedule, positions=positions, segments=segments)


@jax.jit
def step(model, token_ids, schedule, positions, cache):
    return model(token_ids, schedule, positions=positions, cache=cache)


def weights(module):
    """The parameters as nested dicts of float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), nnx.to_pure_dict(nnx.state(module)))

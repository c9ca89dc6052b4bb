"""What a change of schedule does to cached keys, layer by layer, and that rows and heads of a cache can be divided."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from tests.nn.models import drawn, weights
from tests.nn.numpy_decoder import attention

SEQ, OLD = 9, 6
CONFIG = nn.AttentionConfig(embed=12, heads=4, kv_heads=2, head_dim=8)
X = jnp.asarray(np.random.default_rng(0).standard_normal((2, SEQ, 12)), jnp.float32)
POSITIONS = jnp.arange(SEQ, dtype=jnp.int32)[None] + 5000
DYNAMIC = rj.RopeSpec(8, theta=100.0, transform=rj.DynamicNTK(factor=2.0, original_length=4096))
BEFORE, AFTER = DYNAMIC.schedule(5000 + OLD), rj.AttentionTemperature(scale=1.25)(DYNAMIC.schedule(9000))


@pytest.mark.parametrize("keys", ["rotated", "unrotated"])
def test_a_layer_reads_every_key_at_the_new_schedule(keys):
    """Six tokens under one schedule, three under another: as if all nine had been under the second, in float64."""
    block = drawn(lambda: nn.RotaryAttention(CONFIG, rngs=nnx.Rngs(0)))

    @jax.jit
    def read(x, positions, cache, schedule):
        kv_table = None
        if keys == "unrotated":
            kv_table = rj.rotary_table(schedule, cache.reserve(positions)[0].positions)
        table = rj.rotary_table(schedule, positions)
        return block(x, table, positions=positions, cache=cache, schedule=schedule, kv_table=kv_table)

    empty = nn.KVCache.empty(2, SEQ, 2, 8, keys=keys)
    _, cache = read(X[:, :OLD], POSITIONS[:, :OLD], empty, BEFORE)
    if keys == "rotated":
        cache = cache.rerotate(AFTER)
    got, cache = read(X[:, OLD:], POSITIONS[:, OLD:], cache, AFTER)
    cache.check()
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 8, "layout": "half", "qk_norm": False, "softcap": None}
    for row in range(2):
        expected = attention(
            np.asarray(X[row], np.float64), weights(block), sizes, AFTER.float64(), np.asarray(POSITIONS[0]), scale=1.25
        )
        np.testing.assert_allclose(got[row], expected[OLD:], rtol=0, atol=2e-5)
        stale = attention(
            np.asarray(X[row], np.float64), weights(block), sizes, BEFORE.float64(), np.asarray(POSITIONS[0])
        )
        assert np.max(np.abs(got[row] - stale[OLD:])) > 1e-3


DIVIDED = """
import jax
from dataclasses import replace
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, NamedSharding
import rope_jax as rj
from rope_jax import nn

config = nn.DecoderConfig(vocab=11, embed=16, layers=2, heads=4, kv_heads=2, mlp=16, pattern="LG", windows={"L": 3})
model = nn.Decoder(config, rngs=nnx.Rngs(0))
mesh = jax.make_mesh((2, 2), ("rows", "heads"), axis_types=(AxisType.Auto,) * 2)
kept = NamedSharding(mesh, jax.P(None, "rows", None, "heads"))
schedule = rj.RopeSpec(4).schedule()

@jax.jit
def step(model, token_ids, positions, cache):
    return model(token_ids, schedule, positions=positions, cache=cache)

def run(place):
    cache, start, parts = place(model.empty_cache(4, 8).rerotate(schedule)), 0, []
    for stop in (4, 6, 7, 8):
        positions = jnp.arange(start, stop, dtype=jnp.int32)[None]
        logits, cache = step(model, jnp.arange(4)[:, None] + positions, positions, cache)
        parts.append(jax.device_get(logits))
        start = stop
    return jnp.concatenate(parts, axis=1), cache.check()

def divided(cache):
    return replace(cache, k=jax.device_put(cache.k, kept), v=jax.device_put(cache.v, kept))

(expected, _), (got, cache) = run(lambda cache: cache), run(divided)
assert cache.k.sharding.is_equivalent_to(kept, 5), cache.k.sharding
assert float(jnp.max(jnp.abs(expected - got))) < 2e-5
"""


@pytest.mark.slow
def test_rows_and_heads_of_a_cache_are_divided_over_devices():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", DIVIDED], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

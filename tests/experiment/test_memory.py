"""Long evaluation: what the scoring step holds at once, and how exact its sums over many tokens are."""

import math
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from rope_jax.experiment import evaluate

LENGTH, CHUNK, GIB = 32_768, 512, 2**30
# SmolLM2-135M: 134.5 million weights.
LLAMA = nn.DecoderConfig(vocab=49_152, embed=576, layers=30, heads=9, kv_heads=3, head_dim=64, mlp=1536)
SHAPE = re.compile(r"\b[a-z]+\d+\[(\d+(?:,\d+)*)\]")


@pytest.fixture(scope="module")
def compiled():
    """The scoring step of a sweep over a checkpoint, compiled for one row of 32k tokens; nothing is run."""
    graphdef, params = nnx.split(nnx.eval_shape(lambda: nn.Decoder(LLAMA, rngs=nnx.Rngs(0))))
    tokens, positions = (jax.ShapeDtypeStruct((1, size), jnp.int32) for size in (LENGTH + 1, LENGTH))
    step: Any = evaluate.scoring_step(graphdef, CHUNK)
    return step.lower(params, {"all": rj.geometric_schedule(64)}, tokens, positions).compile()


def test_a_135m_llama_evaluates_32k_tokens_within_4_gib_above_its_weights(compiled):
    memory = compiled.memory_analysis()
    weights = 4 * 134_515_008
    inputs = memory.argument_size_in_bytes - weights
    assert 0 < inputs < 2**20
    above = inputs + memory.temp_size_in_bytes + memory.output_size_in_bytes
    # Logits alone would take 6 GiB.
    assert above < 1 * GIB, above


def test_no_buffer_holds_the_logits_of_all_tokens(compiled):
    sizes = {shape: math.prod(map(int, shape.split(","))) for shape in SHAPE.findall(compiled.as_text())}
    assert sizes[f"{CHUNK},{LLAMA.vocab}"] == CHUNK * LLAMA.vocab
    # The widest is the hidden layer of the MLP.
    assert max(sizes.values()) == LENGTH * 1536
    assert not any(str(LENGTH) in shape.split(",") and str(LLAMA.vocab) in shape.split(",") for shape in sizes)


def test_means_over_many_tokens_do_not_lose_digits():
    """Half a million losses of 10: a running float32 sum stops growing by whole losses at 2^24."""
    losses = np.full((4, 131_072), 10.0) + np.random.default_rng(0).uniform(-1e-3, 1e-3, (4, 131_072))
    wanted = math.fsum(losses.ravel()) / losses.size
    assert np.mean(evaluate.by_position(losses, 131_072 // 4)) == pytest.approx(wanted, rel=1e-12)


def test_losses_of_a_long_row_are_exact_token_by_token():
    """bfloat16 states and weights over 65536 tokens: losses are taken and kept in float32 and summed in float64."""
    vocab, tokens = 32, 65_536
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.normal(size=(1, tokens, 8)), jnp.bfloat16)
    kernel = jnp.asarray(random.normal(size=(8, vocab)), jnp.bfloat16)
    targets = random.integers(0, vocab, (1, tokens)).astype(np.int32)

    class Graph:
        def hidden(self, token_ids, schedules, **_):
            return hidden

        def unembed(self, states):
            return states.astype(jnp.float32) @ kernel.astype(jnp.float32)

    model = Graph()
    scores = jax.jit(lambda targets: evaluate.token_scores(model.hidden(None, None), model.unembed, targets, 1000))
    losses, _ = evaluate.score(
        lambda params, schedules, rows, positions, scale, score_map: scores(rows[:, 1:]),
        {},
        None,
        np.concatenate([targets[:, :1], targets], axis=1),
        1,
    )
    logits = np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64)
    top = logits.max(axis=-1)
    wanted = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))
    wanted = wanted - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    assert losses.dtype == np.float64
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=5e-6)
    assert losses.mean() == pytest.approx(math.fsum(wanted.ravel()) / tokens, abs=1e-7)


RUN = """
import resource, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
import rope_jax as rj
from rope_jax import nn
from rope_jax.experiment import evaluate
from tests.experiment.test_memory import CHUNK, LLAMA

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

graphdef, shapes = nnx.split(nnx.eval_shape(lambda: nn.Decoder(LLAMA, rngs=nnx.Rngs(0))))
random = np.random.default_rng(0)
draw = lambda leaf: jnp.asarray(0.02 * random.standard_normal(leaf.shape, np.float32))
params = jax.block_until_ready(jax.tree.map(draw, shapes))
tokens = random.integers(0, LLAMA.vocab, (1, 4097)).astype(np.int32)
before = resident()
step, schedules = evaluate.scoring_step(graphdef, CHUNK), {"all": rj.geometric_schedule(64)}
losses, _ = evaluate.score(step, params, schedules, tokens, 1)
peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert np.isfinite(losses).all() and losses.shape == (1, 4096)
print("weights and imports", before, "peak", peak)
print(peak - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_a_run_at_4k_stays_within_that_above_its_weights():
    """The whole process, compiler included: what it ever held above what it held once the weights were there."""
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    assert int(done.stdout.split()[-1]) < 1 * GIB, done.stdout

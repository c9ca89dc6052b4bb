"""The step against its parts: one big batch, micro-batches, chunks, recomputation, frozen and trained frequencies."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from rope_jax import nn
from rope_jax.experiment.evaluate import token_losses
from rope_jax.experiment.training.frequencies import logarithms, turned_by
from rope_jax.experiment.training.loss import divided_losses
from rope_jax.experiment.training.step import build_step
from rope_jax.schedule import geometric_schedule

CONFIG = nn.DecoderConfig(vocab=32, embed=16, layers=2, heads=2, head_dim=8, mlp=16)
SCHEDULES = {"all": geometric_schedule(8)}


def graph(**changes):
    return nnx.split(nn.Decoder(dataclasses.replace(CONFIG, **changes), rngs=nnx.Rngs(0)))


def batch(rows=4, length=8):
    random = np.random.default_rng(0)
    tokens = random.integers(0, 32, (rows, length + 1)).astype(np.int32)
    weights = (random.random((rows, length)) < 0.6).astype(np.float32)
    weights[0] = 0.0  # a row without targets, so that parts of the batch count differently
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    segments = np.ones((rows, length), np.int32)
    return {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": weights,
        "positions": positions,
        "segments": segments,
    }


def stepped(graphdef, params, optimizer, frequencies=None, **options):
    state = {"params": params} | ({} if frequencies is None else {"frequencies": frequencies})
    state["opt"] = optimizer.init(params if frequencies is None else dict(state))
    return jax.jit(build_step(graphdef, optimizer, loss_chunk=8, **options))(state, SCHEDULES, batch())


@pytest.fixture(scope="module")
def plain():
    graphdef, params = graph()
    return stepped(graphdef, params, optax.sgd(1.0))


def apart(left, right):
    return max(
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def test_the_loss_is_the_mean_over_weighted_targets(plain):
    graphdef, params = graph()
    model, given = nnx.merge(graphdef, params), batch()
    logits = np.asarray(model(given["inputs"], SCHEDULES, positions=given["positions"]), np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    logp = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    picked = np.take_along_axis(logp, given["targets"][..., None], axis=-1)[..., 0]
    expected = -(picked * given["weights"]).sum() / given["weights"].sum()
    assert float(plain[1]["loss"]) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"accumulate": 4}, {"dots": True}])
def test_parts_and_recomputation_give_the_step_of_the_whole(plain, options):
    graphdef, params = graph()
    state, metrics = stepped(graphdef, params, optax.sgd(1.0), **options)
    assert apart(state, plain[0]) < 2e-6
    assert apart(metrics, plain[1]) < 2e-6


def test_recomputed_layers_give_the_same_step(plain):
    graphdef, params = graph(remat=True)
    assert apart(stepped(graphdef, params, optax.sgd(1.0)), plain) < 2e-6


def test_the_gradient_norm_is_that_of_the_update(plain):
    _, params = graph()
    moved = jax.tree.map(lambda after, before: after - before, plain[0]["params"], params)
    assert float(plain[1]["grad_norm"]) == pytest.approx(float(optax.tree.norm(moved)), rel=1e-4)


def test_bfloat16_computes_with_float32_weights(plain):
    graphdef, params = graph(dtype="bfloat16")
    state, metrics = stepped(graphdef, params, optax.adamw(1e-3))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim}
    assert dtypes == {jnp.dtype("float32")}
    assert metrics["loss"].dtype == jnp.float32
    assert float(metrics["loss"]) == pytest.approx(float(plain[1]["loss"]), rel=2e-2)
    assert float(metrics["loss"]) != float(plain[1]["loss"])


def test_parts_that_do_not_divide_the_rows():
    graphdef, params = graph()
    with pytest.raises(ValueError, match=r"`accumulate` must divide the 4 rows of a batch; got 3\."):
        stepped(graphdef, params, optax.sgd(1.0), accumulate=3)


@pytest.mark.parametrize("learnable", [False, True])
def test_frequencies_move_where_they_are_trained(plain, learnable):
    graphdef, params = graph()
    begun = logarithms(SCHEDULES)
    state, metrics = stepped(graphdef, params, optax.adamw(1e-2), begun, learnable=learnable)
    moved = np.asarray(state["frequencies"]["all"] - begun["all"])
    assert np.all(moved != 0) if learnable else np.all(moved == 0)
    assert float(metrics["loss"]) == pytest.approx(float(plain[1]["loss"]), abs=1e-5)


def test_frozen_frequencies_stay_whatever_moments_they_have():
    graphdef, params = graph()
    optimizer, begun = optax.adamw(1e-2), logarithms(SCHEDULES)
    state = {"params": params, "frequencies": begun}
    state["opt"] = optimizer.init(dict(state))
    steps = [jax.jit(build_step(graphdef, optimizer, loss_chunk=8, learnable=learnable)) for learnable in (True, False)]
    state, _ = steps[0](state, SCHEDULES, batch())
    learned = np.asarray(state["frequencies"]["all"])
    state, _ = steps[1](state, SCHEDULES, batch())
    assert np.array_equal(state["frequencies"]["all"], learned)


def test_logarithms_give_the_frequencies_back():
    schedule = geometric_schedule(8).replace(inv_freq=jnp.array([1.0, 0.5, 0.01, 0.0]))
    turned = turned_by({"all": schedule, "L": None}, logarithms({"all": schedule, "L": None}))
    assert turned["L"] is None
    assert np.allclose(turned["all"].inv_freq, schedule.inv_freq, rtol=1e-6, atol=1e-29)


@pytest.mark.parametrize(("divided", "chunk"), [((2, 1), 4), ((2, 2), 3), ((1, 4), 100), ((4, 2), 1)])
def test_losses_by_shards_are_those_in_order(divided, chunk):
    random = np.random.default_rng(1)
    hidden = jnp.asarray(random.normal(size=(4, 8, 16)).astype(np.float32))
    kernel = jnp.asarray(random.normal(size=(16, 32)).astype(np.float32))
    targets = jnp.asarray(random.integers(0, 32, (4, 8)).astype(np.int32))
    expected = token_losses(hidden, lambda x: x @ kernel, targets, 32)
    assert np.allclose(divided_losses(hidden, lambda x: x @ kernel, targets, chunk, divided), expected, atol=1e-6)


@pytest.mark.parametrize("divided", [(1, 1), (2, 4)])
def test_the_logits_of_all_tokens_never_exist(divided):
    vocab, chunk, tokens = 64, 4, 64

    def loss(hidden, kernel, targets):
        return divided_losses(hidden, lambda x: x @ kernel, targets, chunk, divided).sum()

    shapes = (
        jax.ShapeDtypeStruct((4, 16, 2), jnp.float32),
        jax.ShapeDtypeStruct((2, vocab), jnp.float32),
        jax.ShapeDtypeStruct((4, 16), jnp.int32),
    )
    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*shapes)
    largest = max(_sizes(jaxpr.jaxpr, vocab))
    assert largest == chunk * vocab * divided[0] * divided[1] < tokens * vocab


def _sizes(jaxpr, vocab):
    """Sizes of the arrays with logits, in a jaxpr and all inside it."""
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars if v.aval.ndim > 1 and v.aval.shape[-1] == vocab)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _sizes(inner, vocab)

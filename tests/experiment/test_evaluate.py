"""Evaluation: chunked losses, the truncation baseline, one compilation for all methods, accuracies."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax.experiment import evaluate
from rope_jax.experiment.model import group_schedules, make_decoder
from tests.experiment.tiny import passkey_config

VOCAB = 10


def reference(hidden, kernel, targets):
    """Losses and hits in float64, all logits at once."""
    logits = np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64)
    top = logits.max(axis=-1, keepdims=True)
    normaliser = top[..., 0] + np.log(np.exp(logits - top).sum(axis=-1))
    return normaliser - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0], logits.argmax(-1) == targets


@pytest.mark.parametrize("chunk", [1, 7, 60, 4096])
def test_chunked_losses_equal_the_float64_reference(chunk):
    random = np.random.default_rng(0)
    hidden = random.normal(size=(3, 20, 8)).astype(np.float32)
    kernel = (4 * random.normal(size=(8, 50))).astype(np.float32)
    targets = random.integers(0, 50, size=(3, 20)).astype(np.int32)

    @jax.jit
    def run(hidden, targets):
        return evaluate.token_scores(hidden, lambda x: x @ kernel, targets, chunk)

    losses, hits = run(hidden, targets)
    wanted, wanted_hits = reference(hidden, kernel, targets)
    np.testing.assert_allclose(losses, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(hits, wanted_hits)
    assert losses.dtype == jnp.float32


def test_losses_of_bfloat16_logits_are_float32():
    hidden = jnp.full((1, 5, 4), 0.3, jnp.bfloat16)
    losses = evaluate.token_losses(
        hidden, lambda x: x @ jnp.ones((4, 3), jnp.bfloat16), jnp.zeros((1, 5), jnp.int32), 2
    )
    np.testing.assert_allclose(losses, np.full((1, 5), np.log(3.0)), rtol=1e-6)
    assert losses.dtype == jnp.float32


@pytest.mark.parametrize("transformed", [lambda f: f, jax.grad])
def test_no_array_holds_the_logits_of_more_than_a_chunk(transformed):
    tokens, vocab, chunk = 4096, 32_000, 512
    kernel = jax.ShapeDtypeStruct((4, vocab), jnp.float32)

    def total(hidden, kernel, targets):
        return evaluate.token_losses(hidden, lambda x: x @ kernel, targets, chunk).sum()

    hidden, targets = jax.ShapeDtypeStruct((1, tokens, 4), jnp.float32), jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    jaxpr = jax.make_jaxpr(transformed(total))(hidden, kernel, targets)
    assert max(sizes(jaxpr.jaxpr)) == chunk * vocab


def sizes(jaxpr):
    """The size of every value of a jaxpr, inner ones included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                yield from sizes(getattr(inner, "jaxpr", inner))


def test_gradient_of_chunks_is_the_gradient_of_the_whole():
    random = np.random.default_rng(1)
    hidden = jnp.asarray(random.normal(size=(1, 9, 4)), jnp.float32)
    kernel = jnp.asarray(random.normal(size=(4, 6)), jnp.float32)
    targets = jnp.asarray(random.integers(0, 6, size=(1, 9)), jnp.int32)

    def total(hidden, chunk):
        return evaluate.token_losses(hidden, lambda x: x @ kernel, targets, chunk).sum()

    chunked, whole = (jax.grad(total)(hidden, chunk) for chunk in (4, 9))
    np.testing.assert_allclose(chunked, whole, rtol=1e-5, atol=1e-6)


def test_a_chunk_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="`chunk` must be at least 1 token; got 0"):
        evaluate.token_losses(jnp.zeros((1, 2, 4)), lambda x: x, jnp.zeros((1, 2), jnp.int32), 0)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_truncation_scores_every_target_once_from_its_last_tokens(stride):
    trained, length = 8, 32
    tokens = np.arange(length + 1, dtype=np.int32) + 100 * np.arange(2, dtype=np.int32)[:, None]
    windows = evaluate.truncation_windows(tokens, trained, stride)
    # A window's "loss": the target, and how many tokens of the window the target sees.
    seen = np.broadcast_to(np.arange(1, trained + 1), (len(windows), trained))
    targets = evaluate.merge_truncated(windows[:, 1:], items=2, stride=stride)
    context = evaluate.merge_truncated(seen, items=2, stride=stride)
    np.testing.assert_array_equal(targets, tokens[:, 1:])
    np.testing.assert_array_equal(context[:, :trained], [np.arange(1, trained + 1)] * 2)
    assert context[:, trained:].min() == trained - stride + 1
    assert context[:, trained:].max() == trained


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = passkey_config(tmp_path_factory.mktemp("model"))
    decoder = make_decoder(config, vocab=VOCAB, seed=0)
    return config, decoder, nnx.split(decoder)


def test_all_methods_and_weights_share_one_trace_per_length(model, monkeypatch):
    config, decoder, (graphdef, params) = model
    counted = chex.assert_max_traces(evaluate.token_scores, n=2)
    monkeypatch.setattr(evaluate, "token_scores", counted)
    step = evaluate.scoring_step(graphdef, 64)
    other = jax.tree.map(lambda x: x + 1.0, params)
    methods = [
        rj.Identity(),
        rj.YaRN(factor=4.0, original_length=16, beta_fast=2.0),
        rj.DynamicNTK(factor=1.0, original_length=16),
        rj.chain(rj.NTKAware(factor=2.0), rj.Resonance()),
    ]
    random = np.random.default_rng(0)
    seen = []
    for length in (16, 32):
        tokens = random.integers(0, VOCAB, size=(3, length + 1)).astype(np.int32)
        for weights in (params, other):
            for method in methods:
                schedules = group_schedules(config, method, length=length)
                losses, _ = evaluate.score(step, weights, schedules, tokens, rows=2)
                seen.append(losses.mean())
                if length == 32 and weights is params:
                    logits = decoder(tokens[:, :-1], schedules, positions=np.arange(length)[None])
                    wanted, _ = reference(logits, np.eye(VOCAB), tokens[:, 1:])
                    np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-5)
    # Different methods, past the trained length, and different weights are different numbers.
    assert len(set(seen[8:])) == 8
    with pytest.raises(AssertionError, match="traced"):
        evaluate.score(step, params, group_schedules(config, methods[0], length=8), tokens[:, :9], rows=2)


def test_losses_by_position_end_with_the_tail():
    losses = np.arange(24.0).reshape(2, 12)
    assert evaluate.by_position(losses, 4) == [7.5, 11.5, 15.5]


def test_paired_gain_is_the_mean_difference_and_its_standard_error():
    truncated, full = np.array([1.0, 2.0, 4.0]), np.array([0.5, 2.5, 2.0])
    gain, stderr = evaluate.paired_gain(truncated, full)
    assert gain == pytest.approx(2 / 3)
    assert stderr == pytest.approx(np.std([0.5, -0.5, 2.0], ddof=1) / 3**0.5)
    with pytest.raises(ValueError, match="at least 2 windows"):
        evaluate.paired_gain(truncated[:1], full[:1])


def test_accuracy_counts_answer_tokens_whole_answers_and_depths():
    weights = np.array([[0, 1, 1]] * 4, np.float32)
    hits = np.array([[1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1]], bool)
    depths = np.array([0.0, 0.0, 1.0, 1.0], np.float32)
    assert evaluate.accuracy(hits, weights, depths) == (5 / 8, 2 / 4, [[0.0, 3 / 4], [1.0, 2 / 4]])

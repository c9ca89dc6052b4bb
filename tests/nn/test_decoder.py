"""The decoder against float64 loops, and what its inputs and settings must and must not do."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax.nn.positional import alibi_slopes
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, forward, weights
from tests.nn.numpy_decoder import decoder as numpy_decoder
from tests.unchecked import unchecked

HALVED = rj.chain(rj.PositionInterpolation(factor=2.0), rj.AttentionTemperature(scale=1.25))(PLAIN)
BASE = dataclasses.replace(SMALL, layers=2, pattern=("all",), windows=())
LAYERS = dataclasses.replace(SMALL, pattern=("first", "second", "third"), windows={"second": 3})
CASES: dict[str, tuple[Any, Any]] = {
    "a schedule per layer": (LAYERS, {"first": PLAIN, "second": HALVED, "third": None}),
    "every option": (
        dataclasses.replace(BASE, tied=False, qk_norm=True, bias=True, softcap=1.0, sinks=True, layout="interleaved"),
        rj.geometric_schedule(6, theta=100.0),
    ),
    "gemma": (
        dataclasses.replace(
            BASE,
            norm_placement="both",
            activation="gelu_tanh",
            qk_norm=True,
            scale=0.25,
            embed_scale=3.0,
            logit_softcap=2.0,
            norm_epsilon=1e-2,
        ),
        PLAIN,
    ),
    "neox": (
        dataclasses.replace(
            BASE, norm="layer", parallel=True, activation="gelu", gated=False, bias=True, tied=False, norm_epsilon=0.1
        ),
        rj.geometric_schedule(2, theta=100.0),
    ),
    "olmo": (
        dataclasses.replace(BASE, norm_placement="post", qk_norm="full", activation="relu", bias=("mlp", "qkv")),
        PLAIN,
    ),
    "no schedule": (BASE, None),
    "learned": (dataclasses.replace(BASE, positional="learned", max_length=SEQ), None),
    "sinusoidal": (dataclasses.replace(BASE, positional="sinusoidal"), None),
    "alibi": (dataclasses.replace(BASE, positional="alibi"), None),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_agree_with_float64(name):
    config, schedule = CASES[name]
    model = decoder(config)
    got = forward(model, TOKEN_IDS, schedule, POSITIONS)
    groups = schedule if isinstance(schedule, dict) else dict.fromkeys(config.groups, schedule)
    windows = dict(config.windows)
    layers = [
        (None if turn is None else turn.float64(), 1.0 if turn is None else float(turn.attention_scale), windows.get(g))
        for g, turn in ((g, groups[g]) for g in config.layer_groups)
    ]
    sizes = dataclasses.asdict(config)
    slopes = 2.0 ** (-2.0 * np.arange(1, 5)) if config.positional == "alibi" else None
    for row in range(2):
        expected = numpy_decoder(
            np.asarray(TOKEN_IDS[row]), weights(model), sizes, layers,
            np.arange(SEQ), slopes,
        )  # fmt: skip
        np.testing.assert_allclose(got[row], expected, rtol=0, atol=1e-5 * np.max(np.abs(expected)))


def test_logits_depend_on_offsets_only():
    model = decoder()
    here, far = forward(model, TOKEN_IDS, PLAIN, POSITIONS), forward(model, TOKEN_IDS, PLAIN, POSITIONS + 10_000_000)
    np.testing.assert_allclose(far, here, rtol=0, atol=2e-5)
    assert np.max(np.abs(forward(model, TOKEN_IDS, PLAIN, 2 * POSITIONS) - here)) > 1e-2


def test_packed_documents_are_as_alone():
    """Twice the same document: equal logits. Another first document: the second does not notice, to the bit."""
    model, half = decoder(), SEQ // 2
    segments = jnp.asarray([[5] * half + [2] * half], jnp.int32)
    positions = rj.packed_positions(segments)
    twice = jnp.concatenate([TOKEN_IDS[:, :half]] * 2, axis=1)
    logits = forward(model, twice, PLAIN, positions, segments)
    np.testing.assert_allclose(logits[:, half:], logits[:, :half], rtol=0, atol=2e-6)
    changed = twice.at[:, :half].set((twice[:, :half] + 1) % 13)
    after = forward(model, changed, PLAIN, positions, segments)
    np.testing.assert_array_equal(after[:, half:], logits[:, half:])
    assert np.max(np.abs(after[:, :half] - logits[:, :half])) > 1e-2
    # Positions alone do not keep documents apart.
    leaked = forward(model, changed, PLAIN, positions, jnp.ones_like(segments))
    assert np.max(np.abs(leaked[:, half:] - logits[:, half:])) > 1e-2


def test_padding_changes_nothing_and_is_finite():
    model = decoder()
    mask = jnp.asarray([[False] * 2 + [True] * 6 + [False] * 2, [True] * 7 + [False] * 3])
    positions = rj.padded_positions(mask)
    logits = forward(model, TOKEN_IDS, PLAIN, positions)
    other = forward(model, jnp.where(mask, TOKEN_IDS, -100), PLAIN, positions)
    np.testing.assert_array_equal(logits, other)
    assert np.all(np.isfinite(logits))
    whole = forward(model, jnp.roll(TOKEN_IDS, -2, axis=1), PLAIN, POSITIONS)
    np.testing.assert_allclose(logits[0, 2:8], whole[0, :6], rtol=0, atol=2e-5)


def test_rows_of_a_batch_have_their_own_lengths():
    """Eight and 32 real tokens, trained on 16, in one program: each row as if alone, whatever its neighbour."""
    model, traces = decoder(BASE), []
    spec = rj.RopeSpec(rotary_dim=8, theta=100.0, transform=rj.DynamicNTK(factor=2.0, original_length=16))
    token_ids = jnp.asarray(np.random.default_rng(1).integers(0, 13, (2, 32)), jnp.int32)

    @jax.jit
    def logits(model, token_ids, count):
        traces.append(token_ids.shape)
        positions = rj.padded_positions(jnp.arange(32)[None] < count[:, None])
        return model(token_ids, spec.schedule(length=rj.lengths(positions)), positions=positions)

    def row(ids, count):
        positions = jnp.where(jnp.arange(32) < count, jnp.arange(32), -1)[None]
        return forward(model, ids[None], spec.schedule(length=count), positions)[0]

    for counts in ((8, 32), (32, 8), (15, 17), (16, 16)):
        got = logits(model, token_ids, jnp.asarray(counts))
        for index, count in enumerate(counts):
            alone = row(token_ids[index], count)
            np.testing.assert_allclose(got[index, :count], alone[:count], rtol=0, atol=2e-5)
    assert len(traces) == 1
    unscaled = forward(model, token_ids[:1], PLAIN, jnp.arange(32)[None])[0]
    np.testing.assert_allclose(row(token_ids[0], 16)[:16], unscaled[:16], rtol=0, atol=2e-5)
    assert np.max(np.abs(row(token_ids[0], 32) - unscaled)) > 1e-2


def test_schedules_are_data():
    """Five methods, two groups and per-head schedules of one shape: no new trace."""
    model, traces = decoder(), []

    @jax.jit
    def logits(model, schedule):
        traces.append(jax.tree.structure(schedule))
        return model(TOKEN_IDS, schedule, positions=POSITIONS)

    results = [logits(model, {"L": PLAIN, "G": rj.PositionInterpolation(factor=s)(PLAIN)}) for s in (1.0, 2.0, 4.0)]
    assert len(traces) == 1 and np.max(np.abs(results[0] - results[2])) > 1e-2
    np.testing.assert_allclose(results[0], logits(model, PLAIN), rtol=0, atol=1e-6)
    heads = jax.tree.map(lambda a, b: jnp.stack([a, b])[:, None, None], PLAIN, HALVED)
    same = jax.tree.map(lambda a: jnp.stack([a, a])[:, None, None], PLAIN)
    np.testing.assert_allclose(logits(model, same), results[0], rtol=0, atol=1e-6)
    assert np.max(np.abs(logits(model, {"L": same, "G": heads}) - results[0])) > 1e-2
    np.testing.assert_allclose(logits(model, {"L": None, "G": PLAIN}), logits(model, {"L": still(), "G": PLAIN}))


def still():
    return PLAIN.replace(inv_freq=jnp.zeros_like(PLAIN.inv_freq))


def test_remat_and_unrolling_change_the_program_and_not_the_result():
    def loss(config):
        @jax.jit
        def of(model):
            return jnp.mean(model(TOKEN_IDS, PLAIN, positions=POSITIONS) ** 2)

        state = nnx.state(decoder())
        return jax.value_and_grad(lambda state: of(nnx.merge(nnx.graphdef(decoder(config)), state)))(state)

    value, gradient = loss(SMALL)
    other, recomputed = loss(dataclasses.replace(SMALL, remat=True, unroll=None))
    np.testing.assert_allclose(other, value, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), gradient, recomputed)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_learned_positions_end_where_their_table_ends():
    model = decoder(CASES["learned"][0])
    far = POSITIONS.at[0, -1].set(SEQ)
    with pytest.raises(
        ValueError, match=re.escape("`positions` must be below the 10 rows of the learned table; got 10")
    ):
        model(TOKEN_IDS, None, positions=far)
    for position in (SEQ, 1_000_000):
        logits = forward(model, TOKEN_IDS, None, POSITIONS.at[0, -1].set(position))
        assert np.all(np.isnan(logits[:, -1])) and np.all(np.isfinite(logits[:, :-1]))
    assert np.all(np.isfinite(forward(model, TOKEN_IDS, None, POSITIONS.at[0, 0].set(-1))))
    np.testing.assert_array_equal(model.learned(jnp.asarray([[-1, 0]], jnp.int32))[0, 0], 0)


def test_slopes_of_heads_that_are_no_power_of_two():
    np.testing.assert_allclose(alibi_slopes(8), 2.0 ** -np.arange(1.0, 9.0))
    np.testing.assert_allclose(alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


def test_half_precision_stays_and_logits_are_float32():
    model = decoder(dataclasses.replace(BASE, dtype="bfloat16", sinks=True, qk_norm=True))
    hidden = jax.eval_shape(lambda m: m.hidden(TOKEN_IDS, PLAIN, positions=POSITIONS), model)
    assert hidden.dtype == jnp.bfloat16 and hidden.shape == (2, SEQ, 16)
    assert jax.eval_shape(forward, model, TOKEN_IDS, PLAIN, POSITIONS).dtype == jnp.float32
    assert model.empty_cache(1, 4).k.dtype == jnp.bfloat16


def test_hidden_and_unembed_make_the_logits():
    model = decoder(CASES["every option"][0])
    hidden = jax.jit(lambda m: m.hidden(TOKEN_IDS, PLAIN, positions=POSITIONS))(model)
    logits = forward(model, TOKEN_IDS, PLAIN, POSITIONS)
    np.testing.assert_allclose(model.unembed(hidden), logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.unembed(hidden[0, 3]), logits[0, 3], rtol=0, atol=1e-5)


REFUSED: tuple[Any, ...] = (
    ({"F": PLAIN}, {}, "`schedule` must name the layer groups ('L', 'G'); got unknown ['F'] and missing ['G', 'L']"),
    ({"L": PLAIN, "G": rj.geometric_schedule(4)}, {}, "`schedule` must have one rotary width in all groups"),
    (rj.geometric_schedule(10), {}, "`schedule` must turn at most the head width 8; got rotary width 10"),
    (jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), PLAIN), {}, "2 kv heads and then those; got (2,)"),
    (
        jax.tree.map(lambda leaf: jnp.stack([leaf] * 3)[:, None, None], PLAIN),
        {},
        "2 kv heads and then those; got (3, 1, 1)",
    ),
    (PLAIN, {"positions": POSITIONS[0]}, "`positions` must be [batch or 1, seq]"),
    (PLAIN, {"positions": POSITIONS[:, 1:]}, "`positions` must be [batch or 1, seq]"),
    (PLAIN, {"segments": POSITIONS[:, 1:]}, "`segments` must be [batch or 1, seq]"),
    (PLAIN, {"token_ids": TOKEN_IDS + 12}, "`token_ids` must be from 0 to vocab - 1 = 12"),
)


@pytest.mark.parametrize(("schedule", "changes", "message"), REFUSED)
def test_inputs_that_do_not_fit_are_refused(schedule, changes, message):
    inputs = {"token_ids": TOKEN_IDS, "positions": POSITIONS} | changes
    with unchecked(), pytest.raises(ValueError, match=re.escape(message)):
        decoder()(inputs.pop("token_ids"), schedule, **inputs)


def test_a_schedule_that_would_have_no_effect_is_refused():
    with pytest.raises(ValueError, match="`schedule` must be None for positional='alibi'"):
        decoder(CASES["alibi"][0])(TOKEN_IDS, PLAIN, positions=POSITIONS)


def test_unknown_tokens_are_not_clamped_under_jit():
    for token in (13, -1, 2**30):
        logits = forward(decoder(), TOKEN_IDS.at[0, 4].set(token), PLAIN, POSITIONS)
        assert np.all(np.isnan(logits[0, 4])) and np.all(np.isfinite(logits[0, :4])) and np.all(np.isfinite(logits[1]))

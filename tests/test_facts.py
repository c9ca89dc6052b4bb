"""What rotary positions are, stated as facts that anyone can check."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj

LAYOUTS = ("half", "interleaved")
TABLE = jax.jit(rj.rotary_table)
HEADS, HEAD_DIM = 2, 8
RNG = np.random.default_rng(0)
POSITIONS = jnp.asarray(RNG.integers(0, 50_000, (1, 6)), jnp.int32)
X = jnp.asarray(RNG.standard_normal((1, 6, HEADS, HEAD_DIM)), jnp.float32)
Y = jnp.asarray(RNG.standard_normal((1, 6, HEADS, HEAD_DIM)), jnp.float32)


@partial(jax.jit, static_argnames="layout")
def turned(x, schedule, positions, layout="half"):
    return rj.rotate(x, rj.rotary_table(schedule, positions), layout=layout)


def plain(rotary_dim=HEAD_DIM, scale=1.0):
    return rj.AttentionTemperature(scale=scale)(rj.geometric_schedule(rotary_dim))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_rotation_keeps_the_norm_of_every_vector(layout, scale):
    """Times the attention scale, which is what cos and sin are multiplied by."""
    norms = jnp.linalg.norm(turned(X, plain(scale=scale), POSITIONS, layout), axis=-1)
    np.testing.assert_allclose(norms, scale * jnp.linalg.norm(X, axis=-1), rtol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_position_zero_is_the_identity(layout):
    origin = jnp.zeros_like(POSITIONS)
    np.testing.assert_array_equal(turned(X, plain(), origin, layout), X)
    np.testing.assert_array_equal(turned(X, plain(scale=2.0), origin, layout), 2 * X)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_depend_on_the_offset_only(layout):
    def score(shift):
        q, k = (turned(part, plain(), POSITIONS + offset + shift, layout) for part, offset in ((X, 17), (Y, 0)))
        return jnp.sum(q * k, axis=-1)

    here = score(0)
    norms = jnp.linalg.norm(X, axis=-1) * jnp.linalg.norm(Y, axis=-1)
    for shift in (1, 4096, 10_000_000, -10_000_000):
        assert np.max(np.abs(score(shift) - here) / norms) < 2e-6
    different = jnp.sum(turned(X, plain(), POSITIONS + 18, layout) * turned(Y, plain(), POSITIONS, layout), axis=-1)
    assert np.max(np.abs(different - here) / norms) > 1e-2


def test_identical_tokens_score_by_distance_alone():
    """The same query and key at every position: the score matrix is Toeplitz."""
    same = jnp.broadcast_to(X[:, :1, :1], (1, 6, 1, HEAD_DIM))
    keys = jnp.broadcast_to(Y[:, :1, :1], (1, 6, 1, HEAD_DIM))
    positions = jnp.arange(6, dtype=jnp.int32)[None] + 3
    scores = np.einsum("sd,td->st", *(turned(part, plain(), positions)[0, :, 0] for part in (same, keys)))
    for offset in range(-5, 6):
        diagonal = np.diagonal(scores, offset)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=0, atol=2e-6)
    assert np.ptp(scores[0]) > 0.1


def test_layouts_are_one_rotation_seen_through_a_permutation():
    """With P = [0, 2, 4, ..., 1, 3, 5, ...]: half(x[P]) == interleaved(x)[P], bit for bit."""
    gather = np.r_[0:HEAD_DIM:2, 1:HEAD_DIM:2]
    np.testing.assert_array_equal(
        turned(X[..., gather], plain(), POSITIONS, "half"), turned(X, plain(), POSITIONS, "interleaved")[..., gather]
    )
    np.testing.assert_array_equal(rj.convert_layout(jnp.arange(HEAD_DIM), to="half"), gather)


@pytest.mark.parametrize("rotary_dim", [HEAD_DIM, 4])
@pytest.mark.parametrize("to", LAYOUTS)
def test_converted_weights_give_the_same_scores(to, rotary_dim):
    """W_q, W_k, their biases and a QK-norm scale moved to the other layout; V and the output stay."""
    rng = np.random.default_rng(1)
    embed = 5
    hidden = rng.standard_normal((1, 6, embed)).astype(np.float32)
    weights = {name: rng.standard_normal((embed, HEADS * HEAD_DIM)).astype(np.float32) for name in "qk"}
    biases = {name: rng.standard_normal(HEADS * HEAD_DIM).astype(np.float32) for name in "qk"}
    norms = {name: rng.standard_normal(HEAD_DIM).astype(np.float32) for name in "qk"}

    def scores(weights, biases, norms, layout):
        parts = []
        for name in "qk":
            x = (hidden @ np.asarray(weights[name]) + np.asarray(biases[name])).reshape(1, 6, HEADS, HEAD_DIM)
            x = x / np.linalg.norm(x, axis=-1, keepdims=True) * np.asarray(norms[name])
            parts.append(turned(jnp.asarray(x), plain(rotary_dim), POSITIONS, layout))
        return np.einsum("bshd,bthd->bhst", *parts)

    source = "interleaved" if to == "half" else "half"
    move = partial(rj.convert_layout, to=to, rotary_dim=rotary_dim, head_dim=HEAD_DIM)
    moved_w, moved_b, moved_n = (
        {name: move(value) for name, value in group.items()} for group in (weights, biases, norms)
    )
    before, after = scores(weights, biases, norms, source), scores(moved_w, moved_b, moved_n, to)
    np.testing.assert_allclose(after, before, rtol=0, atol=5e-5)
    assert np.abs(scores(weights, biases, norms, to) - before).max() > 0.1


def test_normalising_after_the_rotation_erases_the_attention_scale():
    """So the order is norm, then rotate."""

    def unit(x):
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    after = [unit(turned(X, plain(scale=scale), POSITIONS)) for scale in (1.0, 1.5)]
    np.testing.assert_allclose(after[0], after[1], rtol=0, atol=1e-6)
    before = [turned(unit(X), plain(scale=scale), POSITIONS) for scale in (1.0, 1.5)]
    np.testing.assert_allclose(1.5 * before[0], before[1], rtol=0, atol=1e-6)


def test_the_attention_scale_enters_the_logits_squared_and_only_for_turned_channels():
    rotary_dim = 4
    q, k = (turned(part, plain(rotary_dim, scale=1.5), POSITIONS) for part in (X, Y))
    q1, k1 = (turned(part, plain(rotary_dim), POSITIONS) for part in (X, Y))
    products, products1 = q * k, q1 * k1
    np.testing.assert_allclose(
        products[..., :rotary_dim].sum(-1), 2.25 * products1[..., :rotary_dim].sum(-1), rtol=0, atol=1e-5
    )
    np.testing.assert_array_equal(products[..., rotary_dim:], (X * Y)[..., rotary_dim:])


def test_interpolation_is_a_map_on_positions():
    """Dividing frequencies by s puts position s p where p was: 0, 1/4, 1/2, 3/4, 1 for positions 0 to 4."""
    quarter = rj.PositionInterpolation(factor=4.0)(plain())
    steps = jnp.arange(6, dtype=jnp.int32)[None]
    np.testing.assert_array_equal(turned(X, quarter, 4 * steps), turned(X, plain(), steps))
    fractions = np.arange(6) / 4
    table = TABLE(quarter, steps)
    np.testing.assert_allclose(table.cos[0, :, 0], np.cos(fractions), rtol=0, atol=1e-6)


def test_dropped_frequencies_leave_content_alone():
    np.testing.assert_array_equal(turned(X, rj.Drop()(plain()), POSITIONS), X)


def test_proportional_is_not_partial():
    """The same share of channels, other frequencies, other partners."""
    proportional = rj.Proportional(fraction=0.5)(plain())
    partial_ = plain(HEAD_DIM // 2)
    np.testing.assert_array_equal(proportional.inv_freq[2:], 0)
    assert abs(float(proportional.inv_freq[1] - partial_.inv_freq[1])) > 0.05
    out = turned(X, proportional, POSITIONS)
    np.testing.assert_array_equal(out[..., [2, 3, 6, 7]], X[..., [2, 3, 6, 7]])
    assert np.abs(out[..., 4:6] - X[..., 4:6]).max() > 0.1


def test_whole_wavelengths_come_round_again():
    """After resonance, cos and sin repeat with a whole period, up to the last digit carried."""
    schedule = rj.Resonance()(plain())
    periods = np.rint(2 * np.pi / schedule.float64()).astype(np.int64)
    assert periods.tolist() == [6, 63, 628, 6283]
    for pair, period in enumerate(periods):
        once = TABLE(schedule, jnp.array([5], jnp.int32)).cos[0, pair]
        later = TABLE(schedule, jnp.array([5 + 1000 * period], jnp.int32)).cos[0, pair]
        np.testing.assert_allclose(later, once, rtol=0, atol=5e-7)

"""rotate, unrotate, layouts: the values, the dtypes, what passes through, what fits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests import reference
from tests.unchecked import unchecked

LAYOUTS = ("half", "interleaved")
TABLE = jax.jit(rj.rotary_table, static_argnames=("phase", "pair_axes"))
ROTATE = jax.jit(rj.rotate, static_argnames="layout")
UNROTATE = jax.jit(rj.unrotate, static_argnames="layout")
X = np.arange(1, 9, dtype=np.float32) / 8


def at(position, x, schedule, **options):
    """One head of one token, rotated at one position."""
    table = TABLE(schedule, jnp.array([[position]], jnp.int32))
    return np.asarray(ROTATE(jnp.asarray(x)[None, None, None, :], table, **options))[0, 0, 0]


HALF_7 = (-0.3163789, -0.2919527, 0.3128816, 0.4929878, 0.5533122, 0.7346861, 0.8990857, 1.0034754)
INTERLEAVED_7 = (-0.0700089, 0.2705989, -0.035293, 0.6240027, 0.5710123, 0.7918776, 0.8679786, 1.0061004)
HALF_1000 = (-0.4465024, 0.595354, 0.1613667, -0.5713198, 0.4548469, 0.5201477, -0.9381955, 0.9610378)
YARN_7 = (-0.3602383, -0.332426, 0.3830032, 0.5673212, 0.6300176, 0.8365352, 1.0140221, 1.139624)


@pytest.mark.parametrize(
    ("position", "layout", "transform", "expected"),
    [
        (7, "half", rj.Identity(), HALF_7),
        (7, "interleaved", rj.Identity(), INTERLEAVED_7),
        (1000, "half", rj.Identity(), HALF_1000),
        (7, "half", rj.YaRN(factor=4.0, original_length=2048), YARN_7),
    ],
)
def test_printed_rotations(position, layout, transform, expected):
    schedule = transform(rj.geometric_schedule(8))
    np.testing.assert_allclose(at(position, X, schedule, layout=layout), expected, rtol=0, atol=1e-6)


def test_partial_rotation_has_its_own_width():
    """Head 8, rotary 4: exponents over 4, partner inside the slice, channels 4 to 7 untouched."""
    expected = (-3.144039, 1.919605, -0.339143, 4.039197, 5, 6, 7, 8)
    np.testing.assert_allclose(at(2, 8 * X, rj.geometric_schedule(4)), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotary_dim", [2, 4, 8])
def test_values_of_a_batch(layout, rotary_dim):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, 5, 3, 8)), jnp.float32)
    positions = rng.integers(0, 2000, (2, 5), dtype=np.int32)
    schedule = rj.AttentionTemperature(scale=1.25)(rj.geometric_schedule(rotary_dim))
    got = ROTATE(x, TABLE(schedule, positions), layout=layout)
    for row in range(2):
        expected = reference.rotate(x[row], reference.plain(rotary_dim, 1e4), positions[row], layout, 1.25)
        np.testing.assert_allclose(got[row], expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pass_through_channels_keep_their_bits(layout):
    """NaN payloads, infinities, denormals and minus zero too, in every floating dtype."""
    odd = np.array([np.nan, np.inf, -0.0, 1e-40], np.float32)
    table = TABLE(rj.AttentionTemperature(scale=2.0)(rj.geometric_schedule(4)), jnp.array([[123_456]]))
    for dtype, bits in ((jnp.float32, np.uint32), (jnp.bfloat16, np.uint16), (jnp.float16, np.uint16)):
        x = jnp.concatenate([jnp.ones(4, dtype), jnp.asarray(odd).astype(dtype)])[None, None, None, :]
        out = ROTATE(x, table, layout=layout)
        np.testing.assert_array_equal(np.asarray(out)[..., 4:].view(bits), np.asarray(x)[..., 4:].view(bits))
        assert np.all(np.isfinite(np.asarray(out[..., :4], np.float32)))


def test_an_odd_head_may_have_a_passing_channel():
    out = at(3, np.arange(1.0, 6.0, dtype=np.float32), rj.geometric_schedule(4))
    assert out.shape == (5,)
    assert out[4] == 5.0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("x64", [False, True])
def test_output_dtype_is_input_dtype(dtype, x64):
    with jax.enable_x64(x64):
        schedule = rj.YaRN(factor=8.0, original_length=64)(rj.geometric_schedule(8))
        positions = jnp.arange(4, dtype=jnp.int32)[None]
        x = jnp.ones((1, 4, 2, 8), dtype)
        table = TABLE(schedule, positions)
        assert table.cos.dtype == table.sin.dtype == jnp.float32
        for function in (rj.rotate, rj.unrotate):
            assert jax.eval_shape(lambda x, f=function: f(x, table), x).dtype == dtype
            gradient = jax.grad(lambda x, f=function: jnp.sum(f(x, table).astype(jnp.float32)))
            assert jax.eval_shape(gradient, x).dtype == dtype
        assert rj.rotate(x, table).dtype == dtype


def test_low_precision_inputs_are_rotated_in_float32():
    """bfloat16 in and out costs one rounding, not one per operation: half a unit in the last place, 2^-8 relative."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal((1, 64, 2, 8)), jnp.bfloat16)
    table = TABLE(rj.geometric_schedule(8), jnp.arange(64, dtype=jnp.int32)[None] + 4000)
    full = ROTATE(x.astype(jnp.float32), table)
    np.testing.assert_array_equal(
        np.asarray(ROTATE(x, table), np.float32), np.asarray(full.astype(jnp.bfloat16), np.float32)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_backward_is_the_transpose_not_the_inverse(layout):
    table = TABLE(rj.AttentionTemperature(scale=3.0)(rj.geometric_schedule(6)), jnp.array([[5, 900]]))
    rng = np.random.default_rng(2)
    x, y = (jnp.asarray(rng.standard_normal((1, 2, 2, 8)), jnp.float32) for _ in range(2))
    back = jax.jit(lambda x, y: jax.vjp(lambda x: rj.rotate(x, table, layout=layout), x)[1](y)[0])(x, y)
    np.testing.assert_allclose(back[..., :6], 9.0 * UNROTATE(y, table, layout=layout)[..., :6], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(back[..., 6:], y[..., 6:])


class TestTableRank:
    def test_one_row_of_positions_serves_the_batch(self):
        schedule, x = rj.geometric_schedule(4), jnp.ones((3, 5, 2, 4))
        one = ROTATE(x, TABLE(schedule, jnp.arange(5)[None]))
        all_rows = ROTATE(x, TABLE(schedule, jnp.broadcast_to(jnp.arange(5), (3, 5))))
        np.testing.assert_array_equal(one, all_rows)

    def test_no_batch_axis_and_two_batch_axes(self):
        schedule = rj.geometric_schedule(4)
        x = jnp.arange(2 * 3 * 5 * 2 * 4, dtype=jnp.float32).reshape(2, 3, 5, 2, 4)
        deep = ROTATE(x, TABLE(schedule, jnp.arange(5)[None, None]))
        flat = ROTATE(x[1, 2], TABLE(schedule, jnp.arange(5)))
        np.testing.assert_allclose(deep[1, 2], flat, rtol=1e-6)

    def test_a_table_per_kv_head_serves_its_group_of_query_heads(self):
        starts = [rj.geometric_schedule(4, theta=theta) for theta in (1e2, 1e4)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        positions = jnp.array([[0, 3, 700]])
        table = jax.jit(jax.vmap(rj.rotary_table, (0, None), out_axes=-2))(stacked, positions)
        assert table.cos.shape == (1, 3, 2, 2)
        q = jnp.asarray(np.random.default_rng(3).standard_normal((1, 3, 4, 4)), jnp.float32)
        rotated = ROTATE(q, table)
        for head in range(4):
            alone = ROTATE(q[:, :, head : head + 1], TABLE(starts[head // 2], positions))
            np.testing.assert_allclose(rotated[:, :, head : head + 1], alone, rtol=0, atol=1e-6)

    @pytest.mark.parametrize(
        ("cos", "x"),
        [
            ((5, 2), (2, 5, 1, 4)),  # batch axis missing
            ((1, 4, 2), (2, 5, 1, 4)),  # other seq
            ((1, 1, 2), (2, 5, 1, 4)),  # seq is not broadcast
            ((3, 5, 2), (2, 5, 1, 4)),  # other batch
            ((1, 5, 3, 2), (1, 5, 4, 4)),  # 3 kv heads do not divide 4
            ((1, 5, 3), (1, 5, 1, 4)),  # 6 rotary channels in a head of 4
        ],
    )
    def test_tables_that_do_not_fit_raise_with_both_shapes(self, cos, x):
        table = rj.RotaryTable(jnp.ones(cos), jnp.zeros(cos))
        with pytest.raises(ValueError, match=r"`table` must .*got .*\. [A-Z]"):
            rj.rotate(jnp.ones(x), table)


def test_integer_activations_and_unknown_layouts_raise():
    table = rj.rotary_table(rj.geometric_schedule(4), jnp.arange(2)[None])
    with unchecked(), pytest.raises(ValueError, match=r"`layout` must be .*neox"):
        rj.rotate(jnp.ones((1, 2, 1, 4)), table, layout="neox")  # type: ignore[arg-type]
    with unchecked(), pytest.raises(TypeError, match=r"`x` must be floating.*int32"):
        rj.rotate(jnp.ones((1, 2, 1, 4), jnp.int32), table)


class TestScheduleAxes:
    def test_a_schedule_per_row_and_per_token(self):
        starts = [rj.geometric_schedule(4, theta=theta) for theta in (1e2, 1e4)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        positions = jnp.array([[0, 3, 700], [5, 9, 11]])
        by_row = TABLE(jax.tree.map(lambda leaf: leaf[:, None], stacked), positions)
        for row in range(2):
            np.testing.assert_array_equal(by_row.cos[row], TABLE(starts[row], positions[row]).cos)
        which = jnp.array([[0, 1, 0], [1, 1, 0]])
        by_token = TABLE(jax.tree.map(lambda leaf: leaf[which], stacked), positions)
        for row, token in np.ndindex(2, 3):
            alone = TABLE(starts[which[row, token]], positions[row, token][None])
            np.testing.assert_array_equal(by_token.sin[row, token], alone.sin[0])

    @pytest.mark.parametrize("stack", [(2,), (3, 1), (2, 4), (1, 1, 1)])
    def test_axes_that_do_not_fit_name_the_cure(self, stack):
        start = rj.geometric_schedule(4)
        schedule = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*stack, *leaf.shape)), start)
        with pytest.raises(ValueError, match=r"schedule.*must.*got.*(scan|vmap)"):
            rj.rotary_table(schedule, jnp.zeros((2, 3), jnp.int32))


class TestPairAxes:
    """Three position streams: every pair takes its position from one of them."""

    def test_each_pair_reads_its_own_stream(self):
        axes = (0, 0, 1, 2)
        streams = jnp.array([[[0, 7, 9]], [[4, 1, 200]], [[3, 3, 5]]])  # [axes, batch, seq]
        start = rj.geometric_schedule(8)
        table = TABLE(start, streams, pair_axes=axes)
        assert table.cos.shape == (1, 3, 4)
        for pair, axis in enumerate(axes):
            np.testing.assert_array_equal(table.cos[..., pair], TABLE(start, streams[axis]).cos[..., pair])

    def test_equal_streams_are_the_one_dimensional_rotation(self):
        start, positions = rj.geometric_schedule(8), jnp.array([[0, 5, 123_456]])
        table = TABLE(start, jnp.stack([positions] * 3), pair_axes=(0, 1, 2, 1))
        np.testing.assert_array_equal(table.sin, TABLE(start, positions).sin)

    @pytest.mark.parametrize("axes", [(0, 1), (0, 1, 2, 3), (0, 0, -1, 0), (0, 0, 0, 0, 0)])
    def test_axes_that_do_not_fit_raise(self, axes):
        with pytest.raises(ValueError, match=r"`pair_axes` must .*got"):
            rj.rotary_table(rj.geometric_schedule(8), jnp.zeros((3, 1, 2), jnp.int32), pair_axes=axes)


class TestConvertLayout:
    def test_order_of_channels(self):
        assert rj.convert_layout(jnp.arange(8), to="half").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
        assert rj.convert_layout(jnp.arange(8), to="interleaved").tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
        partial = rj.convert_layout(jnp.arange(12), to="half", rotary_dim=4, head_dim=6)
        assert partial.tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_there_and_back(self, axis):
        x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
        there = rj.convert_layout(x, to="half", rotary_dim=4, head_dim=8, axis=axis)
        back = rj.convert_layout(there, to="interleaved", rotary_dim=4, head_dim=8, axis=axis)
        assert not np.array_equal(there, x)
        np.testing.assert_array_equal(back, x)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"to": "neox"}, r"`to` must be .*neox"),
            ({"to": "half", "head_dim": 5, "rotary_dim": 4}, r"`head_dim` must .*12.*5"),
            ({"to": "half", "head_dim": 6, "rotary_dim": 8}, r"`rotary_dim` must .*6.*8"),
            ({"to": "half", "head_dim": 6, "rotary_dim": 3}, r"`rotary_dim` must .*3"),
        ],
    )
    def test_widths_are_checked(self, options, message):
        with unchecked(), pytest.raises(ValueError, match=message):
            rj.convert_layout(jnp.arange(12), **options)

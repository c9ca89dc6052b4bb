"""Positions belong to tokens: padding, packing, lengths, and what counts as an integer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from rope_jax.positions import streaming_positions
from tests.unchecked import unchecked

PACKED = jax.jit(rj.packed_positions)
LENGTHS = jax.jit(rj.lengths)
TABLE = jax.jit(rj.rotary_table)


class TestCheckPositions:
    @pytest.mark.parametrize(
        "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
    )
    def test_every_integer_dtype_gives_the_same_bits(self, dtype):
        start = rj.geometric_schedule(8)
        positions = rj.check_positions(np.array([0, 1, 100], dtype))
        assert isinstance(positions, jax.Array)
        assert positions.dtype == jnp.int32
        expected = TABLE(start, jnp.array([0, 1, 100], jnp.int32))
        np.testing.assert_array_equal(TABLE(start, positions).cos, expected.cos)

    @pytest.mark.parametrize("value", [2**31, 2**32 + 7, -(2**31) - 1, 2**63 - 1])
    @pytest.mark.parametrize("entry", [rj.check_positions, lambda p: rj.rotary_table(rj.geometric_schedule(8), p)])
    def test_positions_past_int32_raise_with_the_value(self, value, entry):
        with pytest.raises(ValueError, match=rf"`positions` must .*got {value}"):
            entry(np.array([0, value, 5]))

    def test_uint64_past_int64_raises(self):
        with pytest.raises(ValueError, match=r"`positions` must .*18446744073709551615"):
            rj.check_positions(np.array([2**64 - 1], np.uint64))

    def test_x64_arrays_are_checked_too(self):
        with jax.enable_x64(True), pytest.raises(ValueError, match=r"`positions` must .*4294967303"):
            rj.check_positions(jnp.array([2**32 + 7]))

    @pytest.mark.parametrize("bad", [np.array([0.0, 1.0]), np.array([True, False]), np.array(["a"]), np.array([1j])])
    def test_floating_boolean_and_other_dtypes_raise(self, bad):
        for entry in (rj.check_positions, lambda p: rj.rotary_table(rj.geometric_schedule(8), p)):
            with pytest.raises(TypeError, match=rf"`positions` must be integers; got dtype {bad.dtype}"):
                entry(bad)

    def test_traced_floating_positions_raise(self):
        for dtype in (jnp.float32, jnp.bfloat16, jnp.bool_):
            with pytest.raises(TypeError, match=r"`positions` must be integers"):
                jax.jit(rj.check_positions)(jnp.zeros(3, dtype))

    def test_lists_are_rows_of_one_length(self):
        with pytest.raises(ValueError, match=r"`token_ids` must be rows of one length; got rows of different lengths"):
            rj.check_positions([[1, 2], [3]], "token_ids")
        assert rj.check_positions([[]]).shape == (1, 0)

    def test_the_argument_is_named(self):
        with pytest.raises(TypeError, match=r"`kv_positions` must"):
            rj.check_positions(np.array([0.5]), argument="kv_positions")

    @pytest.mark.parametrize("value", [2**31 - 1, -(2**31) + 1])
    def test_the_ends_of_the_range_are_in(self, value):
        assert rj.check_positions(np.array([value])).tolist() == [value]


class TestPaddedPositions:
    def test_left_right_and_inner_padding(self):
        mask = jnp.array([[0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]) == 1
        expected = [[-1, -1, 0, 1], [0, 1, -1, -1], [0, -1, -1, 1], [-1, -1, -1, -1]]
        assert rj.padded_positions(mask).tolist() == expected
        assert jax.jit(rj.padded_positions)(mask).dtype == jnp.int32


class TestPackedPositions:
    def test_documents_restart_at_zero(self):
        segments = jnp.array([[3, 3, 3, 1, 2, 2, 0, 0], [0, 5, 5, 5, 5, 5, 5, 5]])
        expected = [[0, 1, 2, 0, 0, 1, -1, -1], [-1, 0, 1, 2, 3, 4, 5, 6]]
        assert rj.packed_positions(segments).tolist() == expected

    def test_a_document_that_begins_with_padding_still_begins_at_zero(self):
        mask = jnp.array([[0, 1, 1, 0, 1, 1]]) == 1
        got = rj.packed_positions(jnp.array([[1, 1, 1, 2, 2, 2]]), mask)
        assert got.tolist() == [[-1, 0, 1, -1, 0, 1]]

    @settings(deadline=None, max_examples=30)
    @given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.booleans(), min_size=1, max_size=4)), max_size=4))
    def test_against_a_loop(self, documents):
        seq = 16
        segments, mask = np.zeros((1, seq), np.int32), np.ones((1, seq), bool)
        place, expected, previous = 0, np.full((1, seq), -1), None
        for segment, real in documents:
            count = 0
            if segment == previous:
                continue  # the same id next to itself is the same document
            previous = segment
            for keep in real:
                segments[0, place], mask[0, place] = segment, keep
                if keep and segment:
                    expected[0, place], count = count, count + 1
                place += 1
        np.testing.assert_array_equal(PACKED(segments, mask), expected)


class TestLengths:
    def test_a_row_is_as_long_as_its_last_position(self):
        positions = jnp.array([[0, 1, 2, -1], [-1, -1, 7, 3], [-1, -1, -1, -1]])
        assert rj.lengths(positions).tolist() == [3, 8, 0]

    def test_a_padded_array_is_not_its_own_length(self):
        """Seventeen tokens in an array of 32."""
        assert rj.lengths(rj.padded_positions(jnp.arange(32)[None] < 17)).tolist() == [17]

    def test_each_token_has_the_length_of_its_document(self):
        segments = jnp.array([[4, 4, 4, 9, 9, 0], [1, 0, 1, 2, 2, 2]])
        positions = jnp.array([[0, 1, 2, 0, 1, 50], [0, 99, 1, 4, 5, 6]])
        expected = [[3, 3, 3, 2, 2, 0], [2, 0, 2, 7, 7, 7]]
        assert LENGTHS(positions, segments).tolist() == expected

    def test_segment_ids_may_be_anything_and_in_any_order(self):
        segments = jnp.array([[2_000_000_000, -5, 2_000_000_000, -5, 7, 0]])
        positions = jnp.array([[3, 0, 1, 8, 0, 4]])
        assert LENGTHS(positions, segments).tolist() == [[4, 9, 4, 9, 1, 0]]

    def test_padding_inside_a_document_does_not_count(self):
        assert LENGTHS(jnp.array([[-1, 0, 1, -1]]), jnp.array([[1, 1, 1, 1]])).tolist() == [[2, 2, 2, 2]]

    def test_four_documents_of_2048_in_a_row_of_8192_are_2048_long(self):
        segments = jnp.repeat(jnp.arange(1, 5), 2048)[None]
        found = LENGTHS(PACKED(segments), segments)
        assert np.all(np.asarray(found) == 2048)
        spec = rj.RopeSpec(rotary_dim=8, transform=rj.DynamicNTK(factor=2.0, original_length=4096))
        schedule = spec.schedule(length=found[:, ::2048])
        plain = np.broadcast_to(rj.geometric_schedule(8).float64(), (1, 4, 4))
        np.testing.assert_allclose(schedule.float64(), plain, rtol=1e-15)

    def test_shapes_and_dtypes_are_checked(self):
        with unchecked(), pytest.raises(ValueError, match=r"`segments` must .*\(1, 4\).*got \(1, 3\)"):
            rj.lengths(jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 3), jnp.int32))
        with unchecked(), pytest.raises(TypeError, match=r"`positions` must be integers"):
            rj.lengths(jnp.zeros((1, 4)))


class TestStreamingPositions:
    def test_the_published_example(self):
        """Tokens 0 to 3 and 6 to 8 in the cache, and token 9: they stand at 0 to 7."""
        positions = jnp.arange(10)[None]
        assert streaming_positions(positions, sinks=4, window=4).tolist() == [[0, 1, 2, 3, -1, -1, 4, 5, 6, 7]]

    def test_a_stream_that_still_fits_keeps_its_positions(self):
        positions = jnp.array([[0, 1, 2, 3, 4, -1], [-1, 0, 1, 2, 3, 4]])
        for sinks, window in ((2, 3), (0, 5), (4, 1), (9, 2**31 - 1), (2**31 - 1, 2**31 - 1)):
            got = streaming_positions(positions, sinks=sinks, window=window)
            np.testing.assert_array_equal(got, positions)

    @settings(deadline=None, max_examples=30)
    @given(st.integers(0, 5), st.integers(1, 6), st.lists(st.integers(0, 14), min_size=2, max_size=2))
    def test_against_a_cache_that_forgets(self, sinks, window, ends):
        positions = np.full((2, 16), -1)
        for row, end in enumerate(ends):
            positions[row, 1 : end + 2] = np.arange(end + 1)
        expected = np.full((2, 16), -1)
        for row, end in enumerate(ends):
            kept = [p for p in range(end + 1) if p < sinks or p > end - window]
            for place, position in enumerate(kept):
                expected[row, 1 + position] = place
        got = streaming_positions(positions, sinks=sinks, window=window)
        np.testing.assert_array_equal(got, expected)
        assert int(got.max()) <= max(sinks + window - 1, 0)

    def test_far_streams_stay_near(self):
        positions = jnp.array([[0, 1, 2**31 - 4, 2**31 - 3, 2**31 - 2]])
        assert streaming_positions(positions, sinks=1, window=2).tolist() == [[0, -1, -1, 1, 2]]

    @pytest.mark.parametrize(("sinks", "window", "named"), [(-1, 2, "sinks"), (1, 0, "window"), (1, 2**31, "window")])
    def test_counts_are_checked(self, sinks, window, named):
        with pytest.raises(ValueError, match=rf"`{named}` must be from"):
            streaming_positions(jnp.arange(3)[None], sinks=sinks, window=window)
        counts: dict[str, Any] = {"sinks": 1, "window": 2, named: 1.0}
        with unchecked(), pytest.raises(TypeError, match=rf"`{named}` must be an integer"):
            streaming_positions(jnp.arange(3)[None], **counts)
        counts = {"sinks": np.int64(1), "window": np.int32(2)}
        with unchecked():
            assert streaming_positions(jnp.arange(6)[None], **counts).tolist() == [[0, -1, -1, -1, 1, 2]]

"""Effective length and what it is made of."""

import pytest

from rope_jax.experiment.summary import combined_gain, effective_length, headline_length


def row(length, gain, stderr):
    return {"length": length, "context_gain": gain, "context_gain_stderr": stderr}


@pytest.mark.parametrize(
    ("gains", "length"),
    [
        ([(0.0, 0.0), (0.1, 0.01), (-0.1, 0.01)], 128),
        ([(0.0, 0.0), (-0.019, 0.01), (-0.021, 0.01)], 128),
        ([(0.0, 0.0), (-0.1, 0.01), (0.3, 0.01)], 64),
        ([(-0.1, 0.01), (0.1, 0.01), (0.1, 0.01)], 0),
        ([(-1e-9, 0.0), (0.1, 0.01), (0.1, 0.01)], 256),
    ],
)
def test_a_length_counts_only_when_all_shorter_ones_do(gains, length):
    rows = [row(64 * 2**index, *gain) for index, gain in enumerate(gains)]
    assert effective_length(reversed(rows)) == length


def test_seeds_are_averaged_before_they_are_judged():
    rows = [row(64, -0.3, 0.04), row(64, 0.2, 0.03)]
    # Windows are shared: (0.04^2 + 0.03^2) / 2 = 0.00125. Seeds are not: 0.5^2 / 2 / 2 = 0.0625.
    assert combined_gain(rows) == pytest.approx((-0.05, (0.00125 + 0.0625) ** 0.5))
    assert combined_gain(rows[:1]) == pytest.approx((-0.3, 0.04))
    assert effective_length(rows) == 64
    assert effective_length(rows[:1]) == 0
    assert effective_length([]) == 0


def test_the_headline_is_at_four_times_or_the_longest():
    assert headline_length([64, 128, 256, 512], 64) == 256
    assert headline_length([32, 64, 128], 64) == 128

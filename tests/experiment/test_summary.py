"""Context gains over windows and seeds, their intervals, differences of methods, and the effective length."""

import numpy as np
import pytest

from rope_jax.experiment.summary import combined_gain, effective_length, gain_difference, headline_length, windows_of

T47 = 2.0117405137


def row(length, gain, stderr, windows=48, **fields):
    count = windows * 16
    return {"length": length, "context_gain": gain, "context_gain_stderr": stderr, "count": count} | (
        {"trained_length": 64, "seed": 0} | fields
    )


@pytest.mark.parametrize(
    ("gains", "lengths"),
    [
        ([(0.0, 0.0), (0.1, 0.01), (-0.1, 0.01)], (128, 128)),
        ([(0.0, 0.0), (0.1, 0.01), (0.1, 0.01)], (256, 256)),
        ([(0.0, 0.0), (-0.019, 0.01), (-0.021, 0.01)], (64, 128)),
        ([(0.0, 0.0), (0.019, 0.01), (0.021, 0.01)], (64, 256)),
        ([(0.0, 0.0), (-0.1, 0.01), (0.3, 0.01)], (64, 64)),
        ([(-0.1, 0.01), (0.1, 0.01), (0.1, 0.01)], (0, 0)),
        ([(-0.01, 0.01), (0.1, 0.01), (-0.1, 0.01)], (0, 128)),
        ([(-1e-9, 0.0), (0.1, 0.01), (0.1, 0.01)], (256, 256)),
    ],
)
def test_a_length_is_reached_by_the_lower_end_and_missed_by_the_upper(gains, lengths):
    rows = [row(64 * 2**index, *gain) for index, gain in enumerate(gains)]
    assert effective_length(reversed(rows)) == lengths
    assert effective_length([]) == (0, 0)


def test_few_windows_need_a_wider_interval():
    few, many = (combined_gain([row(256, 0.046, 0.018, windows=windows)]) for windows in (4, 48))
    assert (windows_of(row(256, 0.0, 0.0, windows=4)), few.windows, many.seeds) == (4, 4, 1)
    assert few.interval() == pytest.approx((0.046 - 3.1824463053 * 0.018, 0.046 + 3.1824463053 * 0.018))
    assert many.interval() == pytest.approx((0.046 - T47 * 0.018, 0.046 + T47 * 0.018))
    assert few.interval().low < 0.0 < many.interval().low


def test_windows_are_shared_by_the_seeds_and_seeds_are_not():
    rows = [row(64, -0.3, 0.04), row(64, 0.2, 0.03, seed=1)]
    # Windows are shared: (0.04^2 + 0.03^2) / 2 = 0.00125. Seeds are not: 0.5^2 / 2 / 2 = 0.0625.
    gain = combined_gain(rows)
    assert (gain.value, gain.stderr) == pytest.approx((-0.05, (0.00125 + 0.0625) ** 0.5))
    assert gain.interval().high == pytest.approx(-0.05 + np.hypot(T47 * 0.00125**0.5, 12.7062047364 * 0.25))
    assert (combined_gain(rows[:1]).value, combined_gain(rows[:1]).stderr) == (-0.3, 0.04)
    assert effective_length(rows) == (0, 64)
    assert effective_length(rows[:1]) == (0, 0)


@pytest.mark.parametrize(("seeds", "windows"), [(1, 4), (2, 4), (3, 48)])
@pytest.mark.parametrize("of_seed", [0.0, 0.15])
def test_the_interval_holds_the_true_gain_at_least_as_often_as_it_says(seeds, windows, of_seed):
    random = np.random.default_rng(seeds * windows)
    spread = of_seed if seeds > 1 else 0.0  # one seed says nothing about the next
    held = []
    for _ in range(600):
        shared, own = random.normal(size=windows), random.normal(size=(seeds, windows))
        gains = shared + 0.3 * own + spread * random.normal(size=(seeds, 1))
        stderrs = gains.std(axis=1, ddof=1) / windows**0.5
        rows = [row(256, *pair, windows=windows) for pair in zip(gains.mean(axis=1), stderrs, strict=True)]
        held.append(combined_gain(rows).interval().holds(0.0))
    assert np.mean(held) > 0.93


def test_methods_are_compared_by_window_where_the_rows_hold_windows_else_by_both_errors_added():
    random = np.random.default_rng(0)
    shared = random.normal(size=48)
    better, worse = shared + 0.1 + 0.1 * random.normal(size=48), shared + 0.1 * random.normal(size=48)
    rows = [
        row(256, gains.mean(), gains.std(ddof=1) / 48**0.5, window_gains=gains.tolist()) for gains in (better, worse)
    ]
    paired = gain_difference(rows[:1], rows[1:])
    assert paired.value == pytest.approx((better - worse).mean())
    assert paired.stderr == pytest.approx((better - worse).std(ddof=1) / 48**0.5)
    assert paired.interval().low > 0.0
    bare = [{name: value for name, value in one.items() if name != "window_gains"} for one in rows]
    added = gain_difference(bare[:1], bare[1:])
    assert added.value == pytest.approx(paired.value)
    assert added.stderr == pytest.approx(sum(one["context_gain_stderr"] for one in rows))
    assert added.interval().low < 0.0


def test_methods_are_compared_seed_by_seed_over_the_seeds_that_both_have():
    mine = [row(256, gain, 0.0, seed=seed) for seed, gain in ((0, 0.1), (1, 0.6), (2, 9.0))]
    its = [row(256, gain, 0.0, seed=seed) for seed, gain in ((1, 0.5), (0, 0.02))]
    apart = gain_difference(mine, its)
    assert (apart.value, apart.of_seeds, apart.seeds) == pytest.approx((0.09, 0.01, 2))


def test_the_headline_is_at_four_times_or_the_longest():
    assert headline_length([64, 128, 256, 512], 64) == 256
    assert headline_length([32, 64, 128], 64) == 128

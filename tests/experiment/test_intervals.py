"""Student's quantile, Wilson's interval and Newcombe's difference against published tables and their definitions."""

import math

import numpy as np
import pytest

from rope_jax.experiment.intervals import Interval, difference, student_quantile, wilson

# Two-sided confidence, degrees of freedom, t: printed tables, to more digits.
TABLE = (
    (0.95, 1, 12.7062047364),
    (0.95, 2, 4.3026527297),
    (0.95, 3, 3.1824463053),
    (0.95, 4, 2.7764451052),
    (0.95, 10, 2.2281388520),
    (0.95, 30, 2.0422724563),
    (0.95, 47, 2.0117405137),
    (0.95, 120, 1.9799304051),
    (0.90, 5, 2.0150483733),
    (0.99, 2, 9.9248432009),
    (0.99, 7, 3.4994832974),
    (0.999, 3, 12.9239786366),
)


@pytest.mark.parametrize(("confidence", "freedom", "quantile"), TABLE)
def test_student_quantiles_are_those_of_the_tables(confidence, freedom, quantile):
    assert student_quantile(confidence, freedom) == pytest.approx(quantile, abs=1e-6)


def test_many_degrees_of_freedom_are_nearly_normal():
    assert student_quantile(0.95, 100_000) == pytest.approx(1.959964, abs=3e-5)


@pytest.mark.parametrize(("share", "trials"), [(0.5, 10), (0.9, 384), (2 / 3, 3), (0.01, 20)])
def test_the_ends_of_wilsons_interval_are_just_not_ruled_out(share, trials):
    for end in wilson(share, trials):
        assert abs(share - end) == pytest.approx(1.959963985 * math.sqrt(end * (1 - end) / trials))


def test_no_hit_and_all_hits_leave_room_at_one_end_only():
    # z^2 / (n + z^2)
    assert wilson(0.0, 3) == pytest.approx((0.0, 0.5614970317))
    assert wilson(1.0, 3) == pytest.approx((0.4385029683, 1.0))
    assert (wilson(0.0, 7).low, wilson(1.0, 7).high) == (0.0, 1.0)


def test_newcombes_published_example():
    # 56 of 70 against 48 of 80: method 10 of the paper gives +0.0524 to +0.3339.
    low, high = difference(56 / 70, wilson(56 / 70, 70), 48 / 80, wilson(48 / 80, 80))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


def test_wilson_holds_the_true_share_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    hits = random.binomial(20, 0.3, size=4000) / 20
    held = np.mean([wilson(float(share), 20).holds(0.3) for share in hits])
    assert 0.93 < held < 0.98
    assert not Interval(0.1, 0.2).holds(0.3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: student_quantile(0.95, 0), "`freedom` must be at least 1"),
        (lambda: student_quantile(1.0, 3), "`confidence` must lie between 0 and 1"),
        (lambda: wilson(0.5, 0), "`trials` must be at least 1"),
        (lambda: wilson(1.01, 5), "`share` must lie between 0 and 1"),
        (lambda: wilson(0.5, 5, confidence=0.0), "`confidence` must lie between 0 and 1"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

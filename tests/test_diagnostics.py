"""Diagnostics against float64 numbers computed another way, and against published ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax import diagnostics

LENGTHS = (1, 7, 4096, 131_072)


def plain(rotary_dim: int = 64, theta: float = 5e5) -> rj.FrequencySchedule:
    return rj.geometric_schedule(rotary_dim, theta=theta)


def speeds(rotary_dim: int, theta: float) -> np.ndarray:
    return np.array([np.exp(-2 * i / rotary_dim * np.log(theta)) for i in range(rotary_dim // 2)])


@pytest.mark.parametrize("length", LENGTHS)
def test_turns_and_wavelengths_are_what_they_say(length: int) -> None:
    schedule, expected = plain(), speeds(64, 5e5)
    np.testing.assert_allclose(diagnostics.wavelengths(schedule), 2 * np.pi / expected, rtol=1e-13)
    np.testing.assert_allclose(diagnostics.turns(schedule, length), length * expected / (2 * np.pi), rtol=1e-13)
    np.testing.assert_allclose(
        diagnostics.turns(schedule, length) * diagnostics.wavelengths(schedule), length, rtol=1e-13
    )


def test_a_pair_that_stands_still_has_no_wavelength() -> None:
    still = rj.FrequencySchedule.of([1.0, 0.0])
    assert diagnostics.wavelengths(still).tolist() == [2 * np.pi, np.inf]
    assert diagnostics.turns(still, 100)[1] == 0


# Liu et al., 2 ceil(d / 2 log_b(L / 2 pi)); never more than the width.
@pytest.mark.parametrize(
    ("theta", "length", "expected"), [(1e4, 4096, 92), (5e5, 8192, 70), (1e6, 32_768, 80), (1e4, 10**6, 128)]
)
def test_critical_dimension_of_published_models(theta: float, length: int, expected: int) -> None:
    assert diagnostics.critical_dimension(plain(128, theta), length) == expected
    closed = 2 * np.ceil(64 * np.log(length / (2 * np.pi)) / np.log(theta))
    assert expected == min(closed, 128)


def test_ramp_of_yarn_is_where_published_code_puts_it() -> None:
    ends = [diagnostics.pair_of_turns(64, 150_000.0, 4096, count) for count in (32.0, 1.0)]
    np.testing.assert_allclose(ends, [8.0927791, 17.3980245], atol=5e-8)
    index = diagnostics.pair_of_turns(128, 1e4, 4096)
    np.testing.assert_allclose(4096 * 1e4 ** (-index / 64) / (2 * np.pi), 1.0, rtol=1e-12)


def test_base_bound_is_the_published_fit() -> None:
    found = [diagnostics.base_bound(length) for length in (4096, 32_768, 131_072, 1 << 20)]
    np.testing.assert_allclose(found, [3.2e4, 9.5e5, 9.1e6, 2.7e8], rtol=0.02)


@pytest.mark.parametrize("length", [1024, 2048, 4096])
def test_similarity_length_meets_the_fit_to_its_own_bases(length: int) -> None:
    """The bound is fitted to the least base whose similarity length is the length."""
    bound = diagnostics.base_bound(length)
    assert diagnostics.similarity_length(plain(128, bound / 2), length) < length
    assert diagnostics.similarity_length(plain(128, bound * 2), length) == length


def test_similarity_length_is_where_the_score_first_turns_negative() -> None:
    schedule = plain(16, 1000.0)
    found = diagnostics.similarity_length(schedule, 1000)
    scores = [sum(np.cos(d * w) for w in speeds(16, 1000.0)) / 8 for d in range(found + 1)]
    assert min(scores[:-1]) >= 0 > scores[-1]
    np.testing.assert_allclose(diagnostics.mean_score(schedule, np.arange(found + 1)), scores, atol=1e-12)
    assert diagnostics.mean_score(schedule, [[0], [1]]).shape == (2, 1)
    assert diagnostics.similarity_length(rj.Drop()(schedule), 20_000) == 20_000


def test_verdicts_of_llama_3_are_its_published_bands() -> None:
    scaled = rj.Llama3(factor=32.0, original_length=8192)(plain())
    words = diagnostics.verdicts(scaled, plain(), 32.0)
    assert words.tolist() == ["kept"] * 15 + ["blended"] * 3 + ["interpolated"] * 14
    expected = speeds(64, 5e5)[[15, 16, 17, 18]] / np.array([0.00129054793, 4.29556797e-4, 9.70828780e-5, np.nan])
    expected[3] = 32
    np.testing.assert_allclose(diagnostics.stretch(scaled, plain())[[15, 16, 17, 18]], expected, rtol=5e-9)


def test_every_verdict_and_the_factor_that_is_left_out() -> None:
    before = rj.FrequencySchedule.of(np.array([1.0, 0.5, 0.25, 0.125, 0.0625, 0.0]))
    after = rj.FrequencySchedule.of(np.array([1.0, 0.6, 0.125, 0.03125, 0.0, 0.0]))
    expected = ["kept", "faster", "blended", "interpolated", "removed", "kept"]
    for factor in (None, 4.0):
        assert diagnostics.verdicts(after, before, factor).tolist() == expected
    assert diagnostics.verdicts(after, before, 2.0).tolist()[2] == "interpolated"
    assert set(diagnostics.verdicts(before, before).tolist()) == {"kept"}
    assert set(expected) == set(diagnostics.VERDICTS)
    assert diagnostics.stretch(after, before).tolist() == pytest.approx([1, 0.5 / 0.6, 2, 4, np.inf, 1])


@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
def test_interpolation_claims_factor_times_the_trained_length(factor: float) -> None:
    for method in (
        rj.PositionInterpolation(factor=factor),
        rj.YaRN(factor=factor, original_length=8192),
        rj.YaRN(factor=factor, original_length=8192, truncate=False),
        rj.Llama3(factor=factor, original_length=8192),
    ):
        assert diagnostics.effective_length(method(plain()), plain(), 8192) == 8192 * factor


def test_phases_are_unseen_exactly_beyond_the_effective_length() -> None:
    scaled = rj.NTKAware(factor=4.0)(plain())
    length = diagnostics.effective_length(scaled, plain(), 8192)
    assert 8192 < length < 4 * 8192
    assert not np.any(diagnostics.unseen_phase(scaled, plain(), 8192, length))
    assert np.any(diagnostics.unseen_phase(scaled, plain(), 8192, 1.001 * length))


def test_unseen_phase_counts_the_circle_once() -> None:
    schedule = rj.FrequencySchedule.of(2 * np.pi / np.array([50.0, 200.0, 1000.0]))
    unseen = diagnostics.unseen_phase(schedule, schedule, 100, 400)
    np.testing.assert_allclose(unseen, [0.0, 0.5, 0.3], rtol=1e-12)


def test_a_model_that_saw_every_phase_has_no_limit() -> None:
    short = plain(8, 100.0)
    assert diagnostics.effective_length(short, short, 8192) == np.inf
    assert diagnostics.effective_length(rj.Drop()(plain()), plain(), 8192) == np.inf


def test_stacks_are_read_row_by_row_or_refused() -> None:
    schedules = [plain(), rj.PositionInterpolation(factor=8.0)(plain())]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *schedules)
    assert diagnostics.critical_dimension(stacked, 8192).tolist() == [
        diagnostics.critical_dimension(one, 8192) for one in schedules
    ]
    assert diagnostics.verdicts(stacked, plain(), 8.0).shape == (2, 32)
    with pytest.raises(ValueError, match=r"`schedule` must be one schedule; got leading axes \(2,\)"):
        diagnostics.effective_length(stacked, plain(), 8192)
    with pytest.raises(ValueError, match="`schedule` must be one schedule"):
        diagnostics.mean_score(stacked, [1])


@pytest.mark.parametrize("length", [0, -1, np.inf, np.nan, "8192", True])
def test_lengths_are_tokens(length: object, unchecked: None) -> None:
    with pytest.raises(ValueError, match="`length` must be a number of tokens"):
        diagnostics.turns(plain(), length)  # type: ignore[arg-type]


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`plain` must have the schedule's 32 pairs; got 4"):
        diagnostics.stretch(plain(), plain(8))
    with pytest.raises(ValueError, match=r"`factor` must be at least 1; got 0\.5"):
        diagnostics.verdicts(plain(), plain(), 0.5)
    with pytest.raises(ValueError, match="`count` must be above 0"):
        diagnostics.pair_of_turns(64, 1e4, 100, 0.0)

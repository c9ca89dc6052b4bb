"""Every method against pinned numbers: printed ones of the literature, and transformers' own arrays.

`golden/printed.json` holds values as they are printed, so half a unit of the last digit is their accuracy.
`golden/transformers.json` is written by `scripts/make_golden.py` from `golden/cases.json`, with the versions it used.
"""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import rope_jax as rj
from tests import reference

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PRINTED = json.loads((GOLDEN / "printed.json").read_text(encoding="utf-8"))
CASES = json.loads((GOLDEN / "cases.json").read_text(encoding="utf-8"))
TRANSFORMERS = json.loads((GOLDEN / "transformers.json").read_text(encoding="utf-8"))


def schedule_of(entry, theta):
    methods = [getattr(rj, name)(**fields) for name, fields in entry["methods"]]
    return rj.chain(*methods)(rj.geometric_schedule(entry["rotary_dim"], theta=theta), length=entry.get("length"))


def close_to_print(value, printed):
    """Within 5e-7 relative or half a unit of the last printed digit."""
    exponent = Decimal(printed).as_tuple().exponent
    half_unit = 0.5 * 10.0 ** int(exponent)
    return abs(float(value) - float(printed)) <= max(5e-7 * abs(float(printed)), half_unit)


@pytest.mark.parametrize("entry", PRINTED, ids=[f"{i}-{entry['tag']}" for i, entry in enumerate(PRINTED)])
def test_printed_values(entry):
    schedule = schedule_of(entry, entry["theta"])
    for index, printed in entry.get("inv_freq", {}).items():
        assert close_to_print(schedule.inv_freq[int(index)], printed), (index, schedule.inv_freq[int(index)], printed)
    if "sum" in entry:
        assert close_to_print(schedule.float64().sum(), entry["sum"])
    assert close_to_print(schedule.attention_scale, entry["attention_scale"])


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_transformers_values(case):
    theirs = TRANSFORMERS["schedules"][case["id"]]
    theta = case["rope_parameters"]["rope_theta"]
    schedule = schedule_of(case, theta)
    error = np.abs(schedule.float64() - theirs["inv_freq"])
    # Their ramp is float32: just below an unrounded upper corner it cancels, by one rounding of the plain frequency.
    cancelled = 6e-8 * reference.plain(case["rotary_dim"], theta) if "untruncated" in case["id"] else 0.0
    assert np.all(error <= 5e-7 * schedule.float64() + cancelled)
    np.testing.assert_allclose(schedule.attention_scale, np.float32(theirs["attention_scale"]), rtol=1e-7)


def test_every_case_is_pinned_with_the_versions_it_came_from():
    assert {case["id"] for case in CASES} == set(TRANSFORMERS["schedules"])
    assert set(TRANSFORMERS["versions"]) == {"transformers", "torch", "numpy"}


@pytest.mark.parametrize(("length", "theta"), [(2048, 10_000.0), (3000, 19_499.27764), (4096, 30_527.73675)])
def test_dynamic_ntk_has_the_base_its_length_asks_for(length, theta):
    """s = 2, L = 2048: alpha is 1, 1.9296875 and 3; the last pair is divided by alpha."""
    start = rj.geometric_schedule(128)
    schedule = rj.DynamicNTK(factor=2.0, original_length=2048)(start, length=length)
    np.testing.assert_allclose(schedule.float64(), rj.geometric_schedule(128, theta=theta).float64(), rtol=1e-9)
    alpha = 2 * max(length / 2048, 1) - 1
    np.testing.assert_allclose(schedule.float64()[-1], start.float64()[-1] / alpha, rtol=1e-14)


def test_dynamic_ntk_is_not_the_constant_form():
    """At one and a half times the trained length with s = 4 alpha is 3; the constant s^2 - s + 1 would be 13."""
    start = rj.geometric_schedule(128)
    schedule = rj.DynamicNTK(factor=4.0, original_length=4096)(start, length=6144)
    np.testing.assert_allclose(start.float64()[-1] / schedule.float64()[-1], 3.0, rtol=1e-14)


@pytest.mark.parametrize(("truncate", "corners"), [(True, (8, 18)), (False, (8.0927791, 17.3980245))])
def test_yarn_corners_round_only_when_told_to(truncate, corners):
    """Pairs before the lower corner stay, pairs past the upper are divided by s, for gpt-oss' numbers."""
    start = rj.geometric_schedule(64, theta=150_000.0)
    schedule = rj.YaRN(factor=32.0, original_length=4096, truncate=truncate)(start)
    np.testing.assert_allclose(
        reference.yarn_corners(64, 150_000.0, 4096, truncate=truncate), corners, rtol=0, atol=1e-6
    )
    ratio = schedule.float64() / start.float64()
    np.testing.assert_allclose(ratio[:9], 1.0, rtol=1e-14)
    np.testing.assert_allclose(ratio[18:], 1 / 32, rtol=1e-14)
    assert np.all((ratio[9:18] < 1 - 1e-3) & (ratio[9:18] > 1 / 32 + 1e-4))

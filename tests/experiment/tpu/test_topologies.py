"""The slices that are known, and errors for those that are not."""

import importlib.util

import pytest

from rope_jax.experiment.tpu.topologies import GIB, devices, known, named


def test_a_slice_has_as_many_chips_as_its_grid() -> None:
    assert named("v5e:4x4").chips == 16
    assert named("v5p:2x2x4").chips == 16
    assert named("v5p:2x2x1").chip.hbm == 95 * GIB


def test_every_slice_is_found_by_its_own_name() -> None:
    assert len({one.name for one in known()}) == len(known())
    assert all(named(one.name) == one for one in known())
    assert {one.chip.generation for one in known()} == {"v4", "v5e", "v5p", "v6e"}


def test_peak_rates_and_bandwidths_rise_from_the_small_chips_to_the_large() -> None:
    chips = [named(name).chip for name in ("v5e:2x2", "v4:2x2x1", "v5p:2x2x1", "v6e:2x2")]
    assert [chip.flops for chip in chips] == sorted(chip.flops for chip in chips)
    # Operations that a byte from memory must be worth: all of them are bound by bandwidth below some hundred.
    assert all(100 < chip.flops / chip.bandwidth < 600 for chip in chips)


@pytest.mark.parametrize(
    ("asked", "near"), [("v5e:3x3", "v5e:"), ("v5p:2x2", "v5p:2x2x1"), ("V5P:2x2x2", "v5p:2x2x2"), ("v9:1", "v")]
)
def test_an_unknown_slice_is_refused_with_near_ones(asked: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"`topology` must be one that is known; got .*{near}"):
        named(asked)


def test_without_the_compiler_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'`libtpu`.*pip install "rope-jax\[tpu\]"'):
        devices(named("v5e:2x2"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:1x1", "v5e:2x4", "v5p:1x1x1", "v5p:2x1x1", "v5p:2x2x1", "v6e:4x4"])
def test_the_compiler_knows_as_many_devices_as_chips(name: str) -> None:
    found = devices(named(name))
    assert len(found) == named(name).chips and found[0].platform == "tpu"

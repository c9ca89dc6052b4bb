"""Configurations as they are published, against the right answer for each."""

import json
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests.huggingface.configs import CONFIGS, EXPECTED, LENGTHS, merged

VERSIONS: tuple[Literal[4, 5], ...] = (4, 5)


@pytest.mark.parametrize("name", EXPECTED)
def test_published_configurations(name: str) -> None:
    rope = rj.from_huggingface(CONFIGS[name])
    assert set(rope.specs) == {group for group, *_ in EXPECTED[name]}
    for group, *expected in EXPECTED[name]:
        spec = rope.specs[group]
        if spec is None:
            assert expected == [None]
            continue
        width, head, layout, attention_scale, softmax_scale, inv_freq = expected
        schedule = spec.schedule(LENGTHS.get(name))
        assert (spec.rotary_dim, spec.head_dim, spec.layout) == (width, head, layout)
        np.testing.assert_allclose(schedule.attention_scale, attention_scale, rtol=1e-7)
        np.testing.assert_allclose(spec.softmax_scale, softmax_scale, rtol=1e-14)
        got = schedule.float64()
        np.testing.assert_allclose([got[i] for i in inv_freq], list(inv_freq.values()), rtol=5e-9)  # nine digits


def _check(expected: dict[str, Any], rope: rj.ModelRope) -> None:
    spec = rope.specs[expected["layer"]]
    if expected.get("nope"):
        assert spec is None
        assert [i for i, group in enumerate(rope.layer_groups) if group == expected["layer"]] == expected["layers"]
        return
    assert spec is not None
    schedule = spec.schedule(expected.get("length"))
    np.testing.assert_allclose(schedule.float64(), expected["inv_freq"], rtol=1e-9)
    np.testing.assert_allclose(schedule.attention_scale, expected["attention_scale"], rtol=1e-7)
    assert spec.layout == expected["layout"]
    np.testing.assert_allclose(spec.softmax_scale, expected.get("softmax_scale_multiplier", 1.0), rtol=1e-12)
    assert spec.pair_axes == (tuple(expected["axes"]) if "axes" in expected else None)


def test_every_collected_configuration(shared: Any) -> None:
    """An empty answer means that the file must be refused."""
    path = shared / "cases" / "wild-configs.json"
    if not path.is_file():
        pytest.skip("reference data: no collected configurations")
    cases = json.loads(path.read_text(encoding="utf-8"))
    assert len(cases) == 23
    for case in cases:
        if not case["expect"]:
            with pytest.raises(ValueError, match=r"must.*got"):
                rj.from_huggingface(case["config"])
            continue
        rope = rj.from_huggingface(case["config"])
        for expected in case["expect"]:
            _check(expected, rope)
        for version in VERSIONS:
            again = rj.from_huggingface(merged(case["config"], rope, version))
            assert (again.specs, again.layer_groups) == (rope.specs, rope.layer_groups)


def test_position_streams_of_pairs() -> None:
    chunked = rj.from_huggingface(CONFIGS["qwen2-vl"]).specs["all"]
    dealt = rj.from_huggingface(CONFIGS["qwen3-vl"]).specs["all"]
    assert chunked is not None and chunked.pair_axes == (0,) * 16 + (1,) * 24 + (2,) * 24
    assert dealt is not None and dealt.pair_axes == (0, 1, 2) * 20 + (0,) * 4


def test_scales_of_queries() -> None:
    ministral = rj.from_huggingface(CONFIGS["ministral-3"]).specs["all"]
    llama = rj.from_huggingface(CONFIGS["llama-4"])
    still = llama.specs["nope"]
    assert llama.layer_groups == ("rope", "rope", "rope", "nope")
    assert ministral is not None and ministral.query_scale is not None
    assert still is not None and still.query_scale is not None
    assert llama.specs["rope"] is not None and llama.specs["rope"].query_scale is None
    assert not np.any(still.schedule().float64())
    positions = jnp.array([0, 8190, 8191, 16383, 16384, 100_000, 2**31 - 1])
    floored = np.floor((np.asarray(positions, np.float64) + 1) / 8192)
    np.testing.assert_allclose(still.query_scale(positions), 1 + 0.1 * np.log1p(floored), rtol=1e-6)
    np.testing.assert_allclose(still.query_scale(positions)[jnp.array([2, 5])], [1.0693147, 1.2564949], rtol=1e-7)
    expected = [1.0, 1.0, 1.0, 1.0, 1.0693147, 1.1945910]
    np.testing.assert_allclose(ministral.query_scale(positions[:6]), expected, rtol=1e-7)


def test_llama_4_without_temperature_has_no_spec_where_nothing_turns() -> None:
    rope = rj.from_huggingface(CONFIGS["llama-4"] | {"attn_temperature_tuning": False})
    assert rope.specs["nope"] is None

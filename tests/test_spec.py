"""RopeSpec and ModelRope: frozen settings of a head and of a model."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj


def test_spec_is_the_transform_of_the_geometric_schedule() -> None:
    spec = rj.RopeSpec(16, theta=5e5, transform=rj.YaRN(factor=4.0, original_length=2048))
    expected = spec.transform(rj.geometric_schedule(16, theta=5e5))
    np.testing.assert_array_equal(spec.schedule().float64(), expected.float64())
    assert spec == replace(spec) and hash(spec) == hash(replace(spec))
    assert spec.head_dim == 16


@pytest.mark.parametrize("transform", [rj.Identity(), rj.DynamicNTK(factor=2.0, original_length=16)])
def test_lengths_lead_the_axes(transform: rj.FrequencyTransform) -> None:
    spec = rj.RopeSpec(8, transform=transform)
    per_row, per_token = np.array([8, 32]), np.array([[8, 8, 32], [16, 17, 0]])
    rows, tokens = spec.schedule(per_row), spec.schedule(per_token)
    assert (rows.stack, tokens.stack) == ((2, 1), (2, 3))
    for row, length in enumerate(per_row):
        np.testing.assert_array_equal(rows.float64()[row, 0], spec.schedule(int(length)).float64())
    traced = jax.jit(spec.schedule)(jnp.asarray(per_token))
    np.testing.assert_allclose(traced.float64(), tokens.float64(), rtol=1e-14)
    np.testing.assert_array_equal(tokens.float64()[1, 0], rj.geometric_schedule(8).float64())


def test_logit_scales_multiply_the_whole_query() -> None:
    q = jnp.ones((2, 3, 2, 8), jnp.bfloat16)
    spec = rj.RopeSpec(4, head_dim=8, softmax_scale=2.0, query_scale=lambda positions: positions + 1)
    scaled = spec.scale_queries(q, np.array([[0, 1, 2]]))
    assert scaled.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(scaled[1, :, 1, 7], np.float32), [2.0, 4.0, 6.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary_dim": 7}, "rotary_dim.*even.*7"),
        ({"head_dim": 4}, "rotary_dim.*at most head_dim 4.*8"),
        ({"theta": 1.0}, "theta.*above 1.*1"),
        ({"theta": float("nan")}, "theta.*nan"),
        ({"softmax_scale": 0.0}, "softmax_scale.*above 0"),
        ({"pair_axes": (0, 1)}, "pair_axes.*4 pairs"),
    ],
)
def test_impossible_specs_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rj.RopeSpec(**({"rotary_dim": 8} | changes))


def test_a_length_dependent_spec_asks_for_its_length() -> None:
    spec = rj.RopeSpec(8, transform=rj.chain(rj.DynamicNTK(factor=2.0, original_length=16), rj.Resonance()))
    assert spec.needs_length
    with pytest.raises(ValueError, match=r"`length` must be given.*rope_jax\.lengths"):
        spec.schedule()
    with pytest.raises(ValueError, match=r"length.*shape"):
        spec.schedule(np.ones((2, 2, 2)))


def test_model_rope_copies_and_checks_its_groups() -> None:
    specs = {"L": rj.RopeSpec(8), "G": None}
    rope = rj.ModelRope(specs, ("L", "L", "G"))
    specs["G"] = rj.RopeSpec(8)
    schedules = rope.schedules()
    assert schedules["G"] is None and schedules["L"] is not None
    assert rope == pickle.loads(pickle.dumps(rope)) == rj.ModelRope(**vars(rope))
    with pytest.raises(ValueError, match=r"specs.*layer group"):
        rj.ModelRope({"L": None}, ("L", "G"))
    assert not rope.needs_length

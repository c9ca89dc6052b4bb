"""Schedules and applied rotations against the transformers that is installed, not against pinned numbers."""

import numpy as np
import pytest

import rope_jax as rj
from tests import reference
from tests.scaling.test_golden import CASES, schedule_of

pytest.importorskip("torch", reason="the parity extra is not installed: torch")
pytest.importorskip("transformers", reason="the parity extra is not installed: transformers")

import jax.numpy as jnp
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from scripts.make_golden import transformers_schedule


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_schedules(case):
    theirs, theta = transformers_schedule(case), case["rope_parameters"]["rope_theta"]
    ours = schedule_of(case, theta)
    cancelled = 6e-8 * reference.plain(case["rotary_dim"], theta) if "untruncated" in case["id"] else 0.0
    assert np.all(np.abs(ours.float64() - theirs["inv_freq"]) <= 5e-7 * ours.float64() + cancelled)
    np.testing.assert_allclose(ours.attention_scale, np.float32(theirs["attention_scale"]), rtol=1e-7)


@pytest.mark.parametrize("case", CASES[::9], ids=[case["id"] for case in CASES[::9]])
def test_applied_rotations(case):
    """Right frequencies may still be applied wrongly: compare rotated vectors, with the phase they round."""
    theirs = transformers_schedule(case)
    ours = schedule_of(case, case["rope_parameters"]["rope_theta"])
    rng = np.random.default_rng(0)
    positions = np.array([[0, 1, 17, 1023]])
    x = rng.standard_normal((1, 4, 2, case["rotary_dim"])).astype(np.float32)
    angle = torch.tensor(positions).float()[..., None] * torch.tensor(theirs["inv_freq"], dtype=torch.float32)
    both = torch.cat([angle, angle], dim=-1)
    cos, sin = both.cos() * theirs["attention_scale"], both.sin() * theirs["attention_scale"]
    expected, _ = apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cos, sin, unsqueeze_dim=2)
    got = rj.rotate(jnp.asarray(x), rj.rotary_table(ours, positions, phase="float32"))
    np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=5e-4)

"""The staged configuration with a small model: train, raise the base and go on longer, YaRN at inference."""

import json
import math

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.experiment.training.command import main
from tests.source import ROOT

pytestmark = pytest.mark.slow

SMALL = {
    "model.embed": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.kv-heads": 2,
    "model.head-dim": 8,
    "model.mlp": 16,
    "optimizer.warmup": 2,
    "stages.0.steps": 6,
    "stages.1.steps": 40,
    "stages.1.warmup": 2,
    "evaluate.windows": 2,
    "evaluate.tokens": 20_000,
}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    words = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    config = ROOT / "configs" / "train" / "staged.toml"
    assert main([str(config), "--output", str(output), "--log.no-tensorboard", *words]) == 0
    return json.loads((output / "train-staged" / "record.json").read_text(encoding="utf-8"))


def test_every_stage_has_its_length_base_method_and_rows(record):
    names = ("name", "length", "rows", "steps", "transform", "factor", "original_length", "theta")
    assert [tuple(stage[name] for name in names) for stage in record["stages"]] == [
        ("base", 64, 32, 6, "Identity()", 1.0, 64, 10_000.0),
        ("longer", 256, 8, 40, "Identity()", 4.0, 64, 80_000.0),
        ("yarn at inference", 512, 4, 0, "YaRN()", 2.0, 256, 80_000.0),
    ]


def test_the_stage_at_four_times_the_length_saw_short_documents_too(record):
    base, longer, reach = (stage["trained_on"] for stage in record["stages"])
    assert base["places"] == 6 * 2048 and longer["places"] == 40 * 2048 and reach is None
    short, long = longer["sources"]
    assert (short["longest"], long["shortest"], short["asked"], long["asked"]) == (1000, 1001, 0.6, 0.4)
    assert short["achieved"] == pytest.approx(0.6, abs=0.02)
    assert max(int(name.split("-")[0]) for name in base["context"]) == 64
    assert max(int(name.split("-")[0]) for name in longer["context"]) == 256
    assert sum(longer["context"].values()) == longer["targets"]


def test_yarn_stands_on_the_base_that_was_raised(record):
    schedules = [stage["schedules"]["G"] for stage in record["stages"]]
    raised = rj.geometric_schedule(8, theta=80_000.0)
    assert schedules[1]["inv_freq"] == raised.float64().tolist()
    # The published 32 turns at 4096 tokens, at 256.
    yarn = rj.YaRN(factor=2.0, original_length=256, beta_fast=math.sqrt(256) / 2)(raised)
    assert np.allclose(schedules[2]["inv_freq"], yarn.float64(), rtol=1e-12)
    assert schedules[2]["attention_scale"] == pytest.approx(0.1 * math.log(2) + 1)
    assert set(record["stages"][2]["evaluation"]) == {"64", "256", "512"}

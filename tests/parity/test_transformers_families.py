"""The table of families against the defaults of transformers' own classes: a bare configuration of every model type."""

import importlib
import json
from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.families import FAMILIES

pytest.importorskip("torch", reason="the parity extra is not installed: torch")
pytest.importorskip("transformers", reason="the parity extra is not installed: transformers")

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# No rotary module of its own: sines are a table inside attention, or the code is not part of transformers.
WITHOUT_MODULE = ("gptj", "codegen", "internlm3", "exaone")
# Its own default has heads that do not divide the width, so they need a head_dim.
INDIVISIBLE = ("glm4_moe",)
KNOWN = [
    model
    for row in FAMILIES
    for model in row.models
    if not row.refused and model in CONFIG_MAPPING and model not in (*WITHOUT_MODULE, *INDIVISIBLE)
]


def embedding(config: Any) -> Any:
    """The rotary module of the language model, as the model builds it."""
    name = config.model_type.removesuffix("_model").removesuffix("_text").replace("-", "_")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    (kind,) = {
        value
        for key, value in vars(module).items()
        if key.endswith("RotaryEmbedding") and "Vision" not in key and value.__module__ == module.__name__
    }
    return kind(config)


def test_most_of_the_table_is_known_here() -> None:
    assert len(KNOWN) > 75


@pytest.mark.parametrize("model", KNOWN)
def test_defaults(model: str) -> None:
    config = AutoConfig.for_model(model)
    rope = rj.from_huggingface(json.loads(json.dumps(config.to_dict(), default=str)))
    built = embedding(config.get_text_config())
    for group, spec in rope.specs.items():
        if spec is None or not np.any(spec.schedule(1).float64()):
            continue
        nested = hasattr(built, f"{group}_inv_freq")
        inv_freq = getattr(built, f"{group}_inv_freq" if nested else "inv_freq").double().numpy()
        scale = getattr(built, f"{group}_attention_scaling") if nested else built.attention_scaling
        schedule = spec.schedule(1)
        np.testing.assert_allclose(schedule.float64(), inv_freq, rtol=2e-6, atol=1e-12)
        np.testing.assert_allclose(schedule.attention_scale, np.float32(scale), rtol=2e-7)

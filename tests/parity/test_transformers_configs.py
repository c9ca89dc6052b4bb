"""Exported configurations: transformers must build the same frequencies from them as their spec does."""

from typing import Any, Literal

import numpy as np
import pytest

import rope_jax as rj
from tests.huggingface.configs import CONFIGS
from tests.parity.test_transformers_families import embedding

pytest.importorskip("torch", reason="the parity extra is not installed: torch")
pytest.importorskip("transformers", reason="the parity extra is not installed: transformers")

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

VERSIONS: tuple[Literal[4, 5], ...] = (4, 5)
WIDTH, LONGEST = 64, 65536
TRANSFORMS = (
    rj.Identity(),
    rj.PositionInterpolation(factor=4.0),
    rj.DynamicNTK(factor=2.0, original_length=4096),
    rj.YaRN(factor=4.0, original_length=4096),
    rj.YaRN(factor=4.0, original_length=4096, beta_fast=16.0, beta_slow=2.0, truncate=False, attention_scale=1.5),
    rj.YaRN(factor=40.0, original_length=4096, mscale=0.707),
    rj.YaRN(factor=40.0, original_length=4096, mscale_all_dim=0.8),
    rj.YaRN(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=0.8),
    rj.YaRN(factor=4.0, original_length=4096, ramp="turns"),
    rj.Llama3(factor=8.0, original_length=8192),
    rj.LongRoPE(short_factors=(1.0,) * 32, long_factors=tuple(range(1, 33)), original_length=4096, factor=8.0),
    rj.Proportional(fraction=0.5),
    rj.chain(rj.Proportional(fraction=0.25), rj.PositionInterpolation(factor=8.0)),
    rj.Rescale(factors=tuple(1 + 0.1 * i for i in range(32))),
    rj.NTKAware(factor=8.0),
    rj.BaseChange(theta=1e6),
    rj.NTKByParts(factor=4.0, original_length=4096),
    rj.chain(rj.YaRN(factor=4.0, original_length=4096), rj.Resonance()),
    rj.AttentionTemperature(scale=1.2),
)


def theirs(config: Any, length: int) -> tuple[np.ndarray, float]:
    rope_type = config.rope_parameters["rope_type"]
    if rope_type == "default":  # every model class has its own
        inv_freq, scale = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[rope_type](config, "cpu", seq_len=length)
    return inv_freq.double().numpy(), float(scale)


def agree(spec: rj.RopeSpec, inv_freq: np.ndarray, scale: float, length: int) -> None:
    schedule = spec.schedule(length)
    plain = rj.geometric_schedule(spec.rotary_dim, theta=spec.theta).float64()
    # Their ramp is float32: near its unrounded upper end it cancels, by one rounding of the plain frequency.
    assert np.all(np.abs(schedule.float64() - inv_freq) <= 5e-7 * schedule.float64() + 6e-8 * plain)
    np.testing.assert_allclose(schedule.attention_scale, np.float32(scale), rtol=2e-7)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: type(transform).__name__)
def test_exported_methods(transform: rj.FrequencyTransform, version: Literal[4, 5]) -> None:
    spec = rj.RopeSpec(WIDTH, theta=5e5, transform=transform)
    exported = rj.to_huggingface(rj.ModelRope({"all": spec}, ("all",)), version=version)
    fields: dict[str, Any] = {"hidden_size": 4 * WIDTH, "num_attention_heads": 4, "head_dim": WIDTH}
    config = transformers.LlamaConfig(**({"max_position_embeddings": LONGEST} | fields | exported))
    for length in (100, 20_000):
        agree(spec, *theirs(config, length), length)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("rotary_dim", "head_dim"), [(48, 64), (58, 200), (16, 96)])
def test_exported_widths(rotary_dim: int, head_dim: int, version: Literal[4, 5]) -> None:
    spec = rj.RopeSpec(rotary_dim, head_dim=head_dim, theta=1e6, transform=rj.PositionInterpolation(factor=2.0))
    exported = rj.to_huggingface(rj.ModelRope({"all": spec}, ("all",)), version=version)
    config = transformers.LlamaConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, **exported)
    agree(spec, *theirs(config, 1), 1)


def test_plain_frequencies_are_what_the_model_itself_builds() -> None:
    exported = rj.to_huggingface(rj.ModelRope({"all": rj.RopeSpec(WIDTH, theta=5e5)}, ("all",)))
    config = transformers.LlamaConfig(hidden_size=4 * WIDTH, num_attention_heads=4, head_dim=WIDTH, **exported)
    inv_freq = LlamaRotaryEmbedding(config).inv_freq.double().numpy()
    agree(rj.RopeSpec(WIDTH, theta=5e5), inv_freq, 1.0, 1)


MODELS = (
    *("llama-2", "llama-3.2-1b", "qwen2.5-yarn", "gpt-oss", "phi-4-mini", "deepseek-v2", "gemma-3", "pythia"),
    *("smollm3", "qwen2-vl", "qwen3-v5", "cohere2", "gemma-4", "olmo-3", "ministral-3", "llama-4"),
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MODELS)
def test_exported_models(name: str, version: Literal[4, 5]) -> None:
    """The fields put back into the configuration they came from, read by its own class."""
    if (name, version) == ("gemma-4", 4):
        pytest.skip("heads of two widths have no older form")
    rope = rj.from_huggingface(CONFIGS[name])
    kept = {key: value for key, value in CONFIGS[name].items() if not key.startswith("rope")}
    config = transformers.AutoConfig.for_model(**(kept | rj.to_huggingface(rope, version=version))).get_text_config()
    built = embedding(config)
    for group, spec in rope.specs.items():
        if spec is None or not np.any(spec.schedule(1).float64()):
            continue
        nested = hasattr(built, f"{group}_inv_freq")
        inv_freq = getattr(built, f"{group}_inv_freq" if nested else "inv_freq").double().numpy()
        scale = getattr(built, f"{group}_attention_scaling") if nested else built.attention_scaling
        agree(spec, inv_freq, scale, 1)

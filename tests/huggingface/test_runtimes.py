"""What vLLM computes from what is exported for it is what was meant, or it is refused."""

from typing import Any

import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.runtimes import compose, fix_length, vllm_command
from rope_jax.huggingface.runtimes.facts import VLLM_KEYS
from rope_jax.scaling import METHODS
from tests.huggingface import runtime_models
from tests.huggingface.runtime_methods import (
    DYNAMIC,
    LLAMA,
    LONG,
    STATIC,
    THETA,
    TRAINED,
    VARIANTS,
    WIDTH,
    model,
    numbers,
    same,
)


def for_vllm(rope: rj.ModelRope, config: dict[str, Any], length: int = LONG) -> dict[str, Any]:
    """The overrides, checked to let the length through."""
    command = vllm_command(rope, config, model="DIR", length=length, trained_length=TRAINED)
    overrides = dict(command.overrides)
    entries = overrides["rope_parameters"]
    longest = overrides.get("max_position_embeddings", config["max_position_embeddings"])
    for entry in [entries] if "rope_type" in entries else entries.values():
        assert runtime_models.vllm_longest(entry, longest, config["model_type"]) >= length
    return {"max_position_embeddings": longest} | overrides


def run_vllm(overrides: dict[str, Any], entry: dict[str, Any], **settings: Any) -> runtime_models.Schedule:
    longest = overrides["max_position_embeddings"]
    return runtime_models.vllm(entry, head=WIDTH, max_position=longest, max_model_len=LONG, **settings)


def test_every_method_is_here():
    assert {*STATIC, *DYNAMIC} == set(METHODS)


@pytest.mark.parametrize("name", [name for name in (*STATIC, *VARIANTS) if name not in ("Drop", "ClippedRoPE")])
def test_vllm_computes_static_methods_as_they_are(name):
    rope = model((STATIC | VARIANTS)[name])
    overrides = for_vllm(rope, LLAMA)
    same(run_vllm(overrides, overrides["rope_parameters"]), rope.schedules()["all"])


@pytest.mark.parametrize("name", ["NTKAware", "YaRN", "NTKByParts"])
def test_vllm_turns_part_of_a_head(name):
    spec = rj.RopeSpec(WIDTH // 2, theta=THETA, transform=STATIC[name], head_dim=WIDTH)
    overrides = for_vllm(rj.ModelRope({"all": spec}, ("all",)), LLAMA)
    same(run_vllm(overrides, overrides["rope_parameters"]), spec.schedule())


@pytest.mark.parametrize("name", DYNAMIC)
def test_length_dependence_is_refused_or_fixed(name):
    rope = model(DYNAMIC[name])
    with pytest.raises(ValueError, match="dependence on the length of the sequence would be lost"):
        fix_length(rope, LONG, runtime="vLLM")
    with pytest.raises(ValueError, match="would be lost"):
        fix_length(rope, None, runtime="vLLM", strict=False)
    fixed, remarks = fix_length(rope, LONG, runtime="vLLM", strict=False)
    assert "256 tokens" in remarks[0]
    overrides = for_vllm(fixed, LLAMA)
    same(run_vllm(overrides, overrides["rope_parameters"]), rope.schedules(LONG)["all"])
    # Up to the trained length nothing depends on it.
    short, _ = fix_length(rope, TRAINED, runtime="vLLM")
    same(numbers(short), rope.schedules(1)["all"])


@pytest.mark.parametrize(
    ("rope", "config", "lost"),
    [
        (model(rj.Drop()), {}, "frequency of 0 at pair 0.*would be lost"),
        (model(STATIC["ClippedRoPE"]), {}, "frequency of 0 at pair 15.*would be lost"),
        (model(rj.chain(rj.Proportional(fraction=0.5), rj.PositionInterpolation(factor=2.0))), {}, "`factor`.*lost"),
        (model(STATIC["YaRN"], softmax_scale=1.3), {}, "`softmax_scale`.*lost"),
        (model(STATIC["YaRN"], query_scale=lambda p: p), {}, "`query_scale`.*lost"),
        (model(STATIC["NTKByParts"], layout="interleaved"), {}, "pairing would be lost"),
        (model(STATIC["Llama3"], pair_axes=(0,) * 8 + (1,) * 8), {}, "`mrope_section`.*lost"),
        (model(VARIANTS["YaRN, own scale"]), {"model_type": "gpt_oss"}, "`attention_factor`.*lost"),
        (model(rj.Identity()), {"model_type": "gpt_oss"}, "must be YaRN.*lost"),
        (model(STATIC["Llama3"]), {"model_type": "deepseek_v3"}, "must be YaRN.*lost"),
        (model(VARIANTS["YaRN, own scale"]), {"model_type": "deepseek_v3"}, "`attention_factor`.*lost"),
        (model(VARIANTS["YaRN, not rounded"]), {"model_type": "deepseek_v3"}, "`truncate`.*lost"),
        (model(VARIANTS["YaRN, mscales"]), {"model_type": "deepseek_v3"}, "`softmax_scale` must be 1.29"),
    ],
)
def test_vllm_losses_are_named(rope, config, lost):
    with pytest.raises(ValueError, match=lost):
        for_vllm(rope, LLAMA | config)


def test_vllm_table_of_yarn_is_not_outrun():
    with pytest.raises(ValueError, match=r"at most 256.*positions would be lost"):
        for_vllm(model(STATIC["YaRN"]), LLAMA, length=257)


@pytest.mark.parametrize("name", ["YaRN, mscale alone", "YaRN, mscales"])
def test_vllm_latent_attention(name):
    softmax = (0.1 * np.log(4) * 1.0 + 1) ** 2 if name == "YaRN, mscales" else 1.0
    rope = model(VARIANTS[name], layout="interleaved", softmax_scale=float(softmax))
    overrides = for_vllm(rope, LLAMA | {"model_type": "deepseek_v3"})
    same(run_vllm(overrides, overrides["rope_parameters"], latent=True), rope.schedules()["all"])


def test_vllm_layer_types_get_their_own():
    local = rj.RopeSpec(WIDTH, theta=THETA)
    far = rj.RopeSpec(WIDTH, theta=1e6, transform=rj.PositionInterpolation(factor=8))
    groups = ("sliding_attention", "full_attention")
    rope = compose(rj.ModelRope({groups[0]: local, groups[1]: far}, groups), VARIANTS["YaRN, own scale"])
    assert rope.specs[groups[0]] == local
    overrides = for_vllm(rope, LLAMA | {"model_type": "gemma3_text"})
    for group in groups:
        same(run_vllm(overrides, overrides["rope_parameters"][group]), rope.schedules()[group])
    with pytest.raises(ValueError, match=r"all layers alike.*would be lost"):
        for_vllm(rope, LLAMA)


def test_vllm_hands_some_models_to_transformers():
    # There the attention factor is read, and the override must hold every key.
    overrides = for_vllm(model(STATIC["NTKByParts"]), LLAMA | {"model_type": "olmo2"})
    assert overrides["rope_parameters"]["attention_factor"] == 1.0
    assert overrides["rope_parameters"]["original_max_position_embeddings"] == TRAINED


def test_every_row_of_the_table_names_a_source():
    assert all(fact.source.endswith(".py") and fact.does for row in VLLM_KEYS.values() for fact in row.values())

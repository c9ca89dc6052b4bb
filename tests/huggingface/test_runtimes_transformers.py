"""Fields for transformers, the lengths of a checkpoint, and methods on top of what it has."""

from dataclasses import replace

import pytest

import rope_jax as rj
from rope_jax.huggingface.runtimes import compose, target_length, trained_length, transformers_fields
from tests.huggingface.runtime_methods import (
    DYNAMIC,
    LLAMA,
    LONG,
    OWN,
    STATIC,
    TRAINED,
    VARIANTS,
    WIDTH,
    model,
    numbers,
    same,
)


@pytest.mark.parametrize(
    ("rope", "config", "lost"),
    [
        (model(STATIC["YaRN"]), {"model_type": "qwen2", "head_dim": None}, "`head_dim`.*Remove the key"),
        (model(STATIC["YaRN"]), {"model_type": "gemma3_text"}, "ignores.*would be lost"),
        (model(STATIC["Rescale"]), {"model_type": "phimoe"}, "never uses the long list"),
        (model(DYNAMIC["DynamicNTK"]), {"model_type": "phi3"}, "would be lost"),
        (model(rj.BaseChange(theta=2e4)), {"model_type": "gptj"}, "would be lost"),
        (model(STATIC["YaRN"], softmax_scale=1.3), {}, "softmax_scale.*lost"),
    ],
)
def test_transformers_losses_are_named(rope, config, lost):
    with pytest.raises(ValueError, match=lost):
        transformers_fields(rope, LLAMA | config)


def test_phi3_gets_yarn_as_lists():
    rope, config = model(STATIC["YaRN"]), LLAMA | {"model_type": "phi3", "original_max_position_embeddings": TRAINED}
    fields, _ = transformers_fields(rope, config)
    assert fields["rope_parameters"]["rope_type"] == "longrope"
    again = rj.from_huggingface({**config, **fields, "hidden_size": WIDTH, "num_attention_heads": 1})
    same(numbers(again), rope.schedules()["all"])


def test_top_level_length_follows_the_dict():
    fields, _ = transformers_fields(model(STATIC["YaRN"]), LLAMA | {"original_max_position_embeddings": 32})
    assert fields["original_max_position_embeddings"] == TRAINED


def test_null_widths_that_are_filled_or_not_read():
    transformers_fields(model(STATIC["YaRN"]), LLAMA | {"head_dim": None})
    transformers_fields(model(STATIC["Llama3"]), LLAMA | {"model_type": "qwen2", "head_dim": None})


def test_versions_that_read_it_are_told():
    assert "5.0" in transformers_fields(model(STATIC["YaRN"]), LLAMA)[1][0]
    assert "4.43" in transformers_fields(model(STATIC["YaRN"]), LLAMA, version=4)[1][0]
    assert "4.55" in transformers_fields(model(VARIANTS["YaRN, not rounded"]), LLAMA, version=4)[1][0]
    assert any("equal length" in line for line in transformers_fields(model(DYNAMIC["LongRoPE"]), LLAMA)[1])


def test_lengths():
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 32}
    assert trained_length(LLAMA) == 64 and trained_length(LLAMA | {"rope_scaling": yarn}) == 32
    assert trained_length(LLAMA | {"rope_parameters": {"full_attention": yarn}}) == 32
    with pytest.raises(ValueError, match="must be one length"):
        trained_length(LLAMA | {"rope_scaling": yarn, "original_max_position_embeddings": 16})
    assert trained_length({}) is None
    assert target_length(model(STATIC["YaRN"]), LLAMA, None, None) == 256
    # The factors of Llama 3 and of interpolated checkpoints are not ratios of lengths.
    assert target_length(model(STATIC["Llama3"]), LLAMA, None, None) == 64
    assert target_length(model(STATIC["PositionInterpolation"]), LLAMA, None, 4.0) == 256
    assert target_length(OWN, LLAMA, 99, 4.0) == 99
    with pytest.raises(ValueError, match="`--length` must be given"):
        target_length(OWN, {}, None, 4.0)


def test_methods_edit_layers_that_turn():
    spec = OWN.specs["all"]
    rope = rj.ModelRope({"rope": spec, "nope": None}, ("rope", "nope"))
    edited = compose(rope, rj.NTKAware(factor=2.0))
    assert edited.specs["rope"] == replace(spec, transform=rj.NTKAware(factor=2.0)) and edited.specs["nope"] is None  # type: ignore[type-var]
    with pytest.raises(ValueError, match="no layer rotates"):
        compose(rj.ModelRope({"all": None}, ("all",)), rj.NTKAware(factor=2.0))
    with pytest.raises(ValueError, match="geometric"):
        compose(model(STATIC["YaRN"]), STATIC["YaRN"])


@pytest.mark.parametrize("name", [*STATIC, *DYNAMIC, *VARIANTS])
def test_methods_come_back_or_are_refused(name):
    rope = model((STATIC | DYNAMIC | VARIANTS)[name])
    if name in ("Drop", "ClippedRoPE", "DynamicYaRN"):
        with pytest.raises(ValueError, match=r"stand still|depend on the length"):
            transformers_fields(rope, LLAMA)
        return
    again = rj.from_huggingface(LLAMA | transformers_fields(rope, LLAMA)[0])
    for length in (TRAINED, LONG):
        got, expected = again.schedules(length)["all"], rope.schedules(length)["all"]
        assert got is not None
        same((got.float64(), float(got.attention_scale)), expected)

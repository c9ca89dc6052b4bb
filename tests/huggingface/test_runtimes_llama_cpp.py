"""What llama.cpp computes from the flags and metadata for it is what was meant, or it is refused."""

from typing import Any

import pytest

import rope_jax as rj
from rope_jax.huggingface.runtimes import llama_cpp_command
from tests.huggingface import runtime_models
from tests.huggingface.runtime_methods import LLAMA, LONG, OWN, STATIC, TRAINED, VARIANTS, WIDTH, model, same

FLAGGED = ("Identity", "PositionInterpolation", "NTKAware", "BaseChange", "YaRN", "AttentionTemperature")
FLAGGED_VARIANTS = tuple(name for name in VARIANTS if name not in ("YaRN, not rounded", "YaRN, in turns"))
BY_FILE = tuple(name for name in STATIC if name not in FLAGGED)
TENSOR = "rope_freqs.weight"


def for_llama_cpp(rope: rj.ModelRope, own: rj.ModelRope = OWN, **config: Any) -> tuple[list[str], dict[str, Any]]:
    command, metadata = llama_cpp_command(rope, own, LLAMA | config, model="M.gguf", length=LONG)
    assert command.words[:5] == ("llama-server", "-m", "M.gguf", "-c", str(LONG))
    return list(command.words[5:]), metadata


@pytest.mark.parametrize("name", [*FLAGGED, *(n for n in FLAGGED_VARIANTS if n != "YaRN with temperature")])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_llama_cpp_flags_say_the_same(name, model_type):
    rope = model((STATIC | VARIANTS)[name])
    flags, metadata = for_llama_cpp(rope, model_type=model_type)
    got = runtime_models.llama_cpp(flags, {}, width=WIDTH, trained=TRAINED, architecture=model_type)
    same(got, rope.schedules()["all"])
    if model_type == "llama":
        same(runtime_models.llama_cpp([], metadata, width=WIDTH, trained=TRAINED), rope.schedules()["all"])
    assert ("--yarn-attn-factor" in flags) <= ("--rope-scaling" in flags and "yarn" not in flags)


@pytest.mark.parametrize("name", [*BY_FILE, *(n for n in VARIANTS if n not in FLAGGED_VARIANTS)])
def test_llama_cpp_flags_refuse_what_only_a_file_says(name):
    rope = model((STATIC | VARIANTS)[name])
    with pytest.raises(ValueError, match=r"single pairs would be lost.*--output FILE.gguf"):
        for_llama_cpp(rope)
    with pytest.raises(ValueError, match=r"single pairs would be lost.*--for transformers"):
        for_llama_cpp(rope, model_type="qwen3")


def test_llama_cpp_flags_undo_what_the_file_says():
    own, target = model(VARIANTS["PI with temperature"]), model(STATIC["YaRN"])
    _, inside = for_llama_cpp(own, own)
    flags, _ = for_llama_cpp(target, own)
    same(runtime_models.llama_cpp(flags, inside, width=WIDTH, trained=TRAINED), target.schedules()["all"])
    assert for_llama_cpp(own, own)[0] == []
    with pytest.raises(ValueError, match="single pairs would be lost"):
        for_llama_cpp(target, model(STATIC["Llama3"]))


@pytest.mark.parametrize(
    ("rope", "config", "lost"),
    [
        (model(STATIC["YaRN"], softmax_scale=1.3), {}, "softmax_scale"),
        (model(STATIC["YaRN"], pair_axes=(0,) * 8 + (1,) * 8), {}, "pair_axes"),
        (OWN, {"model_type": "cohere"}, "`model_type` must be one of"),
        (rj.ModelRope({"a": OWN.specs["all"], "b": rj.RopeSpec(WIDTH)}, ("a", "b")), {}, None),
        (rj.ModelRope({"a": OWN.specs["all"], "b": rj.RopeSpec(WIDTH, theta=2e4)}, ("a", "b")), {}, "layers alike"),
        (rj.ModelRope({"a": OWN.specs["all"], "b": None}, ("a", "b")), {}, "no rotation in the layers"),
        (rj.ModelRope({"a": OWN.specs["all"], "b": None}, ("a", "a", "a", "b")), {"model_type": "smollm3"}, None),
    ],
)
def test_llama_cpp_losses_are_named(rope, config, lost):
    if lost is None:
        assert for_llama_cpp(rope, rope, **config)[0] == []
        return
    with pytest.raises(ValueError, match=lost):
        for_llama_cpp(rope, rope, **config)

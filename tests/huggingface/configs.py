"""Real configurations, cut down to what bears on the rotation, and the right answer for each."""

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import rope_jax as rj

CONFIGS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8"))
)

# group, width, head, layout, attention scale, softmax scale, and the frequencies of some pairs (float64, independent).
EXPECTED: MappingProxyType[str, tuple[tuple[Any, ...], ...]] = MappingProxyType(
    {
        "llama-2": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.8659643234, 63: 0.0001154781985}),),
        "llama-3.2-1b": (("all", 64, 64, "half", 1.0, 1.0, {15: 0.00129054793, 16: 4.29556797e-4, 31: 9.41830673e-8}),),
        "qwen2.5-yarn": (
            ("all", 128, 128, "half", 1.138629436111989, 1.0, {32: 0.0006029411765, 63: 3.102344402e-07}),
        ),
        "gpt-oss": (("all", 64, 64, "half", 1.3465735902799727, 1.0, {9: 0.0317056962, 17: 1.29318701e-4}),),
        "phi-4-mini": (("all", 8, 8, "half", 1.1902380714238083, 1.0, {0: 1 / 1.08, 3: 0.001 / 64.8}),),
        "deepseek-v2": (("all", 64, 64, "interleaved", 1.0, 1.5896261651208736, {16: 0.0055, 31: 3.33380358e-06}),),
        "gemma-3": (
            ("sliding_attention", 256, 256, "half", 1.0, 1.0, {0: 1.0, 127: 1.07460783e-4}),
            ("full_attention", 256, 256, "half", 1.0, 1.0, {0: 0.125, 127: 1.39246732e-7}),
        ),
        "pythia": (("all", 64, 256, "half", 1.0, 1.0, {1: 0.7498942093, 31: 0.0001333521432}),),
        "smollm3": (("rope", 128, 128, "half", 1.0, 1.0, {1: 0.7858299804}), ("nope", None)),
        "internlm2": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.7919114945, 63: 4.136459203e-07}),),
        "qwen2-vl": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.8058421878}),),
        "qwen3-v5": (("all", 128, 128, "half", 1.0, 1.0, {1: 0.7773650302}),),
        "cohere2": (
            ("sliding_attention", 128, 128, "interleaved", 1.0, 1.0, {1: 50000 ** (-1 / 64)}),
            ("full_attention", None),
        ),
        "gemma-4": (
            ("sliding_attention", 256, 256, "half", 1.0, 1.0, {127: 1.07460783e-4}),
            ("full_attention", 512, 512, "half", 1.0, 1.0, {63: 1e6 ** (-63 / 256), 64: 0.0, 255: 0.0}),
        ),
        "olmo-3": (
            ("sliding_attention", 128, 128, "half", 1.0, 1.0, {63: 500000 ** (-63 / 64)}),
            ("full_attention", 128, 128, "half", 1.2079441541679836, 1.0, {63: 500000 ** (-63 / 64) / 8}),
        ),
        "ministral-3": (("all", 128, 128, "half", 1.0, 1.0, {63: 1e6 ** (-63 / 64) / 16}),),
    }
)
# What length-dependent configurations were asked at.
LENGTHS: MappingProxyType[str, int] = MappingProxyType({"internlm2": 65536, "phi-4-mini": 4097})
FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "rotary_pct", "rotary_emb_base")


def merged(config: dict[str, Any], rope: rj.ModelRope, version: Literal[4, 5]) -> dict[str, Any]:
    """The configuration with its rope fields replaced by the exported ones, once through JSON."""
    fields = json.loads(json.dumps(rj.to_huggingface(rope, version=version)))
    return {key: value for key, value in config.items() if key not in FIELDS} | fields

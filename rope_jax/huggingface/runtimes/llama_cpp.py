"""The command and the metadata that make llama.cpp turn as a ModelRope says."""

import math
from collections.abc import Mapping
from typing import Any

from rope_jax.huggingface.gguf_rope import rope_metadata
from rope_jax.huggingface.runtimes.composition import geometric, parts_of
from rope_jax.huggingface.runtimes.facts import GGUF_ARCHITECTURES, GGUF_DIVISORS, LLAMA_CPP, LLAMA_CPP_FLAGS
from rope_jax.huggingface.runtimes.vllm import Command
from rope_jax.scaling import BaseChange, FrequencyTransform, Identity, NTKAware, YaRN
from rope_jax.scaling.base import Chain
from rope_jax.spec import ModelRope, RopeSpec

Json = dict[str, Any]
CLOSE = 1e-6


def llama_cpp_command(
    rope: ModelRope, own: ModelRope, config: Mapping[str, Any], *, model: str, length: int
) -> tuple[Command, Json]:
    """`llama-server -m MODEL.gguf -c N ...`, for a GGUF file made from the checkpoint as it is.

    Args:
      rope: static settings.
      own: the checkpoint's, which the file states.
      config: its raw configuration.
      model: the file.
      length: tokens of the context.

    Returns:
      The command; and for the architecture "llama" the metadata that would say the same inside the file, {} otherwise.

    Raises:
      ValueError: settings of which llama.cpp drops something, or that no flag states, naming it and the cure.
    """
    kind = str(config.get("model_type"))
    architecture = GGUF_ARCHITECTURES.get(kind)
    if architecture is None:
        raise ValueError(
            f"`model_type` must be one of {sorted(GGUF_ARCHITECTURES)}, whose rotation in {LLAMA_CPP} is known; got "
            f"{kind!r}."
        )
    spec, before = _one(rope, kind), _one(own, kind)
    _check(spec)
    stated = rope_metadata(rope) if architecture in GGUF_DIVISORS and None not in rope.specs.values() else {}
    flags, remarks = ([], ()) if spec == before else _flags(spec, before, architecture, stated)
    words = ("llama-server", "-m", model, "-c", str(length), *flags)
    return Command(words, {}, (f"checked against {LLAMA_CPP}", *remarks)), stated


def _one(rope: ModelRope, kind: str) -> RopeSpec:
    """The spec that all turning layers share."""
    specs = [spec for spec in rope.specs.values() if spec is not None]
    if not specs or any(spec != specs[0] for spec in specs):
        raise ValueError(
            f"`rope` must turn all layers alike; got the groups {sorted(rope.specs)}: {LLAMA_CPP} takes one setting "
            "from its flags and files, so that of the others would be lost. Use --for transformers."
        )
    still = [layer for layer, group in enumerate(rope.layer_groups) if rope.specs[group] is None]
    if still and (kind != "smollm3" or still != list(range(3, len(rope.layer_groups), 4))):
        raise ValueError(
            f"`rope` must turn every layer, or all but every fourth in SmolLM3; got no rotation in the layers {still}, "
            f"which would be lost: {LLAMA_CPP} has no key for them. Use --for transformers."
        )
    return specs[0]


def _check(spec: RopeSpec) -> None:
    for name, value, neutral in (
        ("softmax_scale", spec.softmax_scale, 1.0),
        ("query_scale", spec.query_scale, None),
        ("pair_axes", spec.pair_axes, None),
    ):
        if value != neutral:
            raise ValueError(f"`{name}` must be {neutral}; got {value!r}, which {LLAMA_CPP} has no flag or key for.")


def _flags(spec: RopeSpec, before: RopeSpec, architecture: str, stated: Json) -> tuple[list[str], tuple[str, ...]]:
    """Flags that override everything the file says of the rotation."""
    scale = float(spec.schedule().attention_scale)
    form, yarn = geometric(spec), _ramp(spec)
    held = _held(before)
    if held is None or (form is None and yarn is None):
        got = spec if held is not None else before
        raise ValueError(
            f"`method` must be a base, a factor or YaRN's rounded ramp to be said by flags of {LLAMA_CPP}; got "
            f"{got.transform!r}, whose frequencies of single pairs would be lost. {_cure(architecture, stated)}"
        )
    if yarn is not None:
        prefix = _prefix(spec)
        assert prefix is not None
        words = ["--rope-freq-base", repr(prefix), "--rope-scaling", "yarn", "--rope-scale", repr(float(yarn.factor))]
        words += ["--yarn-orig-ctx", str(int(yarn.original_length)), "--yarn-ext-factor", "1.0"]
        words += ["--yarn-beta-fast", repr(float(yarn.beta_fast)), "--yarn-beta-slow", repr(float(yarn.beta_slow))]
        scale /= 0.1 * math.log(yarn.factor) + 1
        remarks = _attention(words, scale, held, architecture)
        return words, remarks
    assert form is not None
    words = ["--rope-freq-base", repr(form.theta)]
    if form.factor == 1:
        words += ["--rope-scaling", "none"]
    else:
        words += ["--rope-scaling", "linear", "--rope-scale", repr(form.factor)]
    words += ["--yarn-ext-factor", "0.0"]
    if not math.isclose(scale, held, rel_tol=CLOSE):
        # What the file says is multiplied by the flag.
        words += ["--yarn-attn-factor", repr(scale / held)]
    return words, ()


def _attention(words: list[str], scale: float, held: float, architecture: str) -> tuple[str, ...]:
    """YaRN's flag for the scale is overwritten; the key of the file is not, and can be overridden."""
    if math.isclose(scale, held, rel_tol=CLOSE):
        return ()
    words += ["--override-kv", f"{architecture}.rope.scaling.attn_factor=float:{scale!r}"]
    fact = LLAMA_CPP_FLAGS["yarn", "--yarn-attn-factor"]
    return (f"the attention scale goes by --override-kv, since under yarn llama.cpp {fact.does} ({fact.source})",)


def _ramp(spec: RopeSpec) -> YaRN | None:
    """The YaRN at the end of the transform, if it is llama.cpp's: the ramp in the index, its ends rounded."""
    last = parts_of(spec)[-1]
    if not isinstance(last, YaRN) or last.ramp != "index" or _prefix(spec) is None:
        return None
    return last if last.truncate and float(last.factor) > 1 else None


def _prefix(spec: RopeSpec) -> float | None:
    """The base of the spectrum that the last transform bends, None where there is none."""
    *earlier, _ = parts_of(spec)
    if not all(isinstance(part, Identity | BaseChange | NTKAware) for part in earlier):
        return None
    before: FrequencyTransform = Chain(transforms=tuple(earlier)) if earlier else Identity()
    form = geometric(RopeSpec(spec.rotary_dim, theta=spec.theta, transform=before))
    return form.theta if form is not None else None


def _held(before: RopeSpec) -> float | None:
    """The scale that the checkpoint's file states; None where it holds divisors, which no flag takes away."""
    if before.needs_length:
        return None
    scale = float(before.schedule().attention_scale)
    if geometric(before) is not None:
        return scale
    yarn = _ramp(before)
    if yarn is None or (yarn.beta_fast, yarn.beta_slow) != (32, 1):
        return None
    return scale / (0.1 * math.log(yarn.factor) + 1)


def _cure(architecture: str, stated: Json) -> str:
    if stated:
        return "Write the file, which holds a divisor for each pair: --output FILE.gguf."
    return f'Files of the architecture "{architecture}" have no tensor for them. Use --for transformers.'

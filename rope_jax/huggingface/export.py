"""Write a ModelRope as the rope fields of a Hugging Face configuration."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from rope_jax.huggingface.export_methods import export_method
from rope_jax.huggingface.export_queries import query_fields, spec_query_keys
from rope_jax.huggingface.heads import pair_axes
from rope_jax.huggingface.layers import GLOBAL, LOCAL
from rope_jax.spec import ModelRope, RopeSpec

Json = dict[str, Any]


def to_huggingface(rope: ModelRope, *, version: Literal[4, 5] = 5) -> Json:
    """The rope fields of a Hugging Face configuration, from which transformers builds the same frequencies.

    Merge them into a configuration: `config | to_huggingface(rope)`. A static schedule whose method has no rope type
    leaves as `longrope`, the plain frequencies divided by it in both lists, with its `attention_factor`.

    Args:
      rope: the settings of a model. Where layers turn differently its groups must be the model's layer types.
      version: 5 gives `rope_parameters`; 4 gives `rope_theta`, `rope_scaling` and `partial_rotary_factor` (and
        `rope_local_base_freq` where sliding layers are plain with another base).

    Returns:
      A new dict of JSON values. Beside the rope dict it states what transformers reads elsewhere: `no_rope_layers`
      where some layers do not rotate, `max_position_embeddings` for dynamic NTK (where the growth starts), and Llama
      4's query scale. Layouts belong to the model type and are not written.

    Raises:
      ValueError: a method that depends on the length and has no rope type, a frequency of zero where a ratio is needed
        (the message names the pair), a scale or groups that the form cannot state.

    Example:
      >>> to_huggingface(ModelRope({"all": RopeSpec(64, theta=5e5)}, ("all",) * 2))
      {'rope_parameters': {'rope_type': 'default', 'rope_theta': 500000.0}}
    """
    if version not in (4, 5):
        raise ValueError(f"`version` must be 4 or 5; got {version!r}.")
    beside: Json = {}
    turning: dict[str, RopeSpec] = {}
    for group, spec in rope.specs.items():
        queries = query_fields(spec)
        if spec is None or queries is not None:
            beside |= queries or {}
        else:
            turning[group] = spec
    if len(turning) < len(rope.specs):
        beside["no_rope_layers"] = [int(group in turning) for group in rope.layer_groups]
    dicts = {group: _rope_dict(spec, group, rope.sources, beside) for group, spec in turning.items()}
    alike = all(entry == next(iter(dicts.values())) for entry in dicts.values())
    # Models with layer types of their own ignore a flat dict, even where the types agree.
    flat = not dicts or (alike and (len(dicts) < len(rope.specs) or set(dicts) == {"all"}))
    fields = _version_5(dicts, flat) if version == 5 else _version_4(dicts, flat)
    return fields | beside


def _version_5(dicts: Mapping[str, Json], flat: bool) -> Json:
    if flat:
        return {"rope_parameters": next(iter(dicts.values()), None)}
    # transformers 5.24 reads `truncate` from around the dicts of the layer types, the checkpoint's readers from inside.
    rounding = {entry.get("truncate", True) for entry in dicts.values() if entry["rope_type"] == "yarn"}
    if len(rounding) > 1:
        raise ValueError(
            "`truncate` must be the same in every layer group, since transformers reads one for all; got both. "
            "Export the groups separately."
        )
    return {"rope_parameters": {**dicts, **({"truncate": False} if rounding == {False} else {})}}


def _version_4(dicts: Mapping[str, Json], flat: bool) -> Json:
    if flat:
        return _flat_4(next(iter(dicts.values()), None))
    local = dicts.get(LOCAL)
    if set(dicts) != {GLOBAL, LOCAL} or local is None or set(local) != {"rope_type", "rope_theta"}:
        raise ValueError(
            "`version` must be 5 where layer groups differ otherwise than Gemma 3's, whose sliding layers are plain; "
            f"got 4 for {sorted(dicts)}."
        )
    fields = _flat_4(dicts[GLOBAL])
    if "partial_rotary_factor" in fields:
        raise ValueError("`version` must be 5 where the rotary width differs by layer type; got 4.")
    return {**fields, "rope_local_base_freq": local["rope_theta"]}


def _flat_4(entry: Json | None) -> Json:
    if entry is None:
        return {"rope_scaling": None}
    scaling = {key: value for key, value in entry.items() if key not in ("rope_theta", "partial_rotary_factor")}
    fields: Json = {
        "rope_theta": entry["rope_theta"],
        "rope_scaling": scaling if scaling != {"rope_type": "default"} else None,
    }
    if "partial_rotary_factor" in entry:
        fields["partial_rotary_factor"] = entry["partial_rotary_factor"]
    return fields


def _rope_dict(spec: RopeSpec, group: str, sources: Mapping[str, str], beside: Json) -> Json:
    """One group's dict in the new form."""
    method = export_method(spec)
    for key, value in method.beside.items():
        if beside.setdefault(key, value) != value:
            raise ValueError(f"`{key}` must be the same in every layer group; got {beside[key]} and {value}.")
    entry: Json = {"rope_type": method.rope_type, "rope_theta": method.theta, **method.fields}
    stated = any(name in sources for name in ("partial_rotary_factor", f"{group}.partial_rotary_factor"))
    if spec.rotary_dim != spec.head_dim or (stated and method.rope_type != "proportional"):
        entry["partial_rotary_factor"] = rotary_fraction(spec)
    if spec.pair_axes is not None:
        entry |= _section(spec.pair_axes)
    for key, value in spec_query_keys(spec).items():
        if entry.setdefault(key, value) != value:
            raise ValueError(
                f"`query_scale` must share the original length of its method, which is written once; got {value} and "
                f"{entry[key]}."
            )
    return entry


def rotary_fraction(spec: RopeSpec) -> float:
    """The share whose product with the head's width truncates to the rotary width, as transformers takes it."""
    head_dim = spec.head_dim or spec.rotary_dim
    fraction = spec.rotary_dim / head_dim
    return fraction if int(head_dim * fraction) == spec.rotary_dim else math.nextafter(fraction, 1.0)


def _section(axes: tuple[int, ...]) -> Json:
    counts = [axes.count(axis) for axis in range(max(axes) + 1)]
    for interleaved in (False, True):
        if pair_axes(counts, interleaved) == axes:
            return {"mrope_section": counts, **({"mrope_interleaved": True} if interleaved else {})}
    raise ValueError(
        f"`pair_axes` must be in blocks or dealt out in turn; got {axes}. The file has no field for others."
    )

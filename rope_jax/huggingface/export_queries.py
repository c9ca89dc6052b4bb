"""How scales on queries and logits are stated in a configuration."""

from typing import Any

from rope_jax.logit_scales import Llama4QueryScale, Mistral3QueryScale
from rope_jax.scaling import Drop
from rope_jax.spec import RopeSpec


def query_fields(spec: RopeSpec | None) -> dict[str, Any] | None:
    """Llama 4's fields for a group that does not rotate but scales its queries; None for all other groups."""
    if spec is None or spec.transform != Drop() or not isinstance(spec.query_scale, Llama4QueryScale):
        return None
    scale = spec.query_scale
    return {"attn_temperature_tuning": True, "attn_scale": scale.scale, "floor_scale": scale.floor}


def spec_query_keys(spec: RopeSpec) -> dict[str, Any]:
    """The keys of a rotating group's query scale in its rope dict."""
    if spec.query_scale is None:
        return {}
    if not isinstance(spec.query_scale, Mistral3QueryScale):
        raise ValueError(
            f"`query_scale` must be one that configurations can state, Mistral3QueryScale where layers rotate; got "
            f"{spec.query_scale!r}."
        )
    scale = spec.query_scale
    return {"llama_4_scaling_beta": scale.beta, "original_max_position_embeddings": scale.original_length}

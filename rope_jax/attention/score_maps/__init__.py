"""Score maps of the field: rules that rotate near and far pairs differently, one file per published method."""

from collections.abc import Mapping
from types import MappingProxyType

from rope_jax.attention.score_maps.base import ScoreMap
from rope_jax.attention.score_maps.dual_chunk import DualChunk
from rope_jax.attention.score_maps.lm_infinite import LMInfinite
from rope_jax.attention.score_maps.rerope import LeakyReRoPE, ReRoPE
from rope_jax.attention.score_maps.self_extend import SelfExtend

# Every map by its class name. A new one adds its row here.
SCORE_MAPS: Mapping[str, type[ScoreMap]] = MappingProxyType(
    {kind.__name__: kind for kind in (SelfExtend, DualChunk, ReRoPE, LeakyReRoPE, LMInfinite)}
)

__all__ = ["SCORE_MAPS", "DualChunk", "LMInfinite", "LeakyReRoPE", "ReRoPE", "ScoreMap", "SelfExtend"]

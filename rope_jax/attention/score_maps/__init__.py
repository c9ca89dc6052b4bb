"""Score maps of the field: rules that rotate near and far pairs differently, one file per published method."""

from rope_jax.attention.score_maps.base import ScoreMap
from rope_jax.attention.score_maps.dual_chunk import DualChunk
from rope_jax.attention.score_maps.lm_infinite import LMInfinite
from rope_jax.attention.score_maps.rerope import LeakyReRoPE, ReRoPE
from rope_jax.attention.score_maps.self_extend import SelfExtend

__all__ = ["DualChunk", "LMInfinite", "LeakyReRoPE", "ReRoPE", "ScoreMap", "SelfExtend"]

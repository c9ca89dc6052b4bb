"""Attention behind one function: masks from positions and segments, several ways to compute it, score maps."""

from rope_jax.attention.dispatch import BACKENDS, attend
from rope_jax.attention.regions import Region
from rope_jax.attention.score_maps import DualChunk, LeakyReRoPE, LMInfinite, ReRoPE, ScoreMap, SelfExtend

__all__ = [
    "BACKENDS",
    "DualChunk",
    "LMInfinite",
    "LeakyReRoPE",
    "ReRoPE",
    "Region",
    "ScoreMap",
    "SelfExtend",
    "attend",
]

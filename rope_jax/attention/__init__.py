"""Attention behind one function: masks from positions and segments, several ways to compute it, score maps."""

from rope_jax.attention.context_parallel import attend_sharded
from rope_jax.attention.dispatch import BACKENDS, attend
from rope_jax.attention.regions import Region
from rope_jax.attention.score_maps import DualChunk, LeakyReRoPE, LMInfinite, ReRoPE, ScoreMap, SelfExtend
from rope_jax.attention.sharding import Sharding
from rope_jax.attention.token_order import dealt, restored

__all__ = [
    "BACKENDS",
    "DualChunk",
    "LMInfinite",
    "LeakyReRoPE",
    "ReRoPE",
    "Region",
    "ScoreMap",
    "SelfExtend",
    "Sharding",
    "attend",
    "attend_sharded",
    "dealt",
    "restored",
]

"""Attention behind one function: masks from positions and segments, several ways to compute it."""

from rope_jax.attention.dispatch import BACKENDS, attend

__all__ = ["BACKENDS", "attend"]

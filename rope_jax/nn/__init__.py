"""The attention block, the KV cache and the decoder, on flax.nnx. They know schedules, not scaling methods."""

# Building blocks
from rope_jax.nn.attention import RotaryAttention as RotaryAttention

# Configurations
from rope_jax.nn.attention_config import AttentionConfig as AttentionConfig
from rope_jax.nn.cache import KVCache as KVCache
from rope_jax.nn.config import DecoderConfig as DecoderConfig

# Models
from rope_jax.nn.decoder import Decoder as Decoder

# Generation
from rope_jax.nn.generate import generate as generate

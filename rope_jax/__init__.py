"""rope_jax: RoPE in JAX, with every way to stretch it as a composable transform.

schedule = chain(YaRN(factor=4.0, original_length=2048))(geometric_schedule(64))
table = rotary_table(schedule, positions)
q, k = rotate(q, table), rotate(k, table)
"""

import importlib
from importlib.metadata import version as _version
from typing import Any

# What a schedule does to a model: turns, critical dimension, effective length
from rope_jax import diagnostics as diagnostics

# Attention, and maps of scores that treat near and far keys differently
from rope_jax.attention import DualChunk as DualChunk
from rope_jax.attention import LeakyReRoPE as LeakyReRoPE
from rope_jax.attention import LMInfinite as LMInfinite
from rope_jax.attention import Region as Region
from rope_jax.attention import ReRoPE as ReRoPE
from rope_jax.attention import ScoreMap as ScoreMap
from rope_jax.attention import SelfExtend as SelfExtend
from rope_jax.attention import attend as attend

# Hugging Face configurations
from rope_jax.huggingface import from_huggingface as from_huggingface
from rope_jax.huggingface import to_huggingface as to_huggingface

# Layouts of channel pairs
from rope_jax.layout import convert_layout as convert_layout

# Logit scales: sharper attention as the context grows
from rope_jax.logit_scales import LogN as LogN

# Positions
from rope_jax.positions import check_positions as check_positions
from rope_jax.positions import lengths as lengths
from rope_jax.positions import packed_positions as packed_positions
from rope_jax.positions import padded_positions as padded_positions
from rope_jax.positions import streaming_positions as streaming_positions

# Rotation
from rope_jax.rotation import rotate as rotate
from rope_jax.rotation import unrotate as unrotate

# Positions drawn for training
from rope_jax.sampled_positions import pose_positions as pose_positions
from rope_jax.sampled_positions import random_positions as random_positions

# Scaling methods
from rope_jax.scaling import AttentionTemperature as AttentionTemperature
from rope_jax.scaling import BaseChange as BaseChange
from rope_jax.scaling import ClippedRoPE as ClippedRoPE
from rope_jax.scaling import Drop as Drop
from rope_jax.scaling import DynamicNTK as DynamicNTK
from rope_jax.scaling import DynamicYaRN as DynamicYaRN
from rope_jax.scaling import FrequencyTransform as FrequencyTransform
from rope_jax.scaling import Identity as Identity
from rope_jax.scaling import Llama3 as Llama3
from rope_jax.scaling import LongRoPE as LongRoPE
from rope_jax.scaling import NTKAware as NTKAware
from rope_jax.scaling import NTKByParts as NTKByParts
from rope_jax.scaling import PositionInterpolation as PositionInterpolation
from rope_jax.scaling import Proportional as Proportional
from rope_jax.scaling import Rescale as Rescale
from rope_jax.scaling import Resonance as Resonance
from rope_jax.scaling import YaRN as YaRN
from rope_jax.scaling import chain as chain

# Schedules
from rope_jax.schedule import FrequencySchedule as FrequencySchedule
from rope_jax.schedule import geometric_schedule as geometric_schedule
from rope_jax.schedule import rotary_width as rotary_width

# Specifications of heads and models
from rope_jax.spec import ModelRope as ModelRope
from rope_jax.spec import RopeSpec as RopeSpec
from rope_jax.table import RotaryTable as RotaryTable
from rope_jax.table import rotary_table as rotary_table

__version__ = _version("rope-jax")


def __getattr__(name: str) -> Any:
    # The decoder and whole checkpoints need flax, which the pure functions do not: it is imported on first use.
    if name == "nn":
        return importlib.import_module("rope_jax.nn")
    if name in ("load_pretrained", "save_pretrained"):
        return getattr(importlib.import_module("rope_jax.huggingface.weights"), name)
    raise AttributeError(f"module 'rope_jax' has no attribute {name!r}")

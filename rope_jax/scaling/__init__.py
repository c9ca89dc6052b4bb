"""Scaling methods: one file per published method, each a value that maps a schedule to a schedule.

schedule = chain(YaRN(factor=4.0, original_length=2048), Resonance())(geometric_schedule(64))
"""

from types import MappingProxyType

from rope_jax.scaling.base import Chain as Chain
from rope_jax.scaling.base import FrequencyTransform as FrequencyTransform
from rope_jax.scaling.base import Identity as Identity
from rope_jax.scaling.base import chain as chain
from rope_jax.scaling.base_change import BaseChange as BaseChange
from rope_jax.scaling.by_parts import NTKByParts as NTKByParts
from rope_jax.scaling.clipped import ClippedRoPE as ClippedRoPE
from rope_jax.scaling.drop import Drop as Drop
from rope_jax.scaling.interpolation import PositionInterpolation as PositionInterpolation
from rope_jax.scaling.llama3 import Llama3 as Llama3
from rope_jax.scaling.longrope import LongRoPE as LongRoPE
from rope_jax.scaling.ntk import DynamicNTK as DynamicNTK
from rope_jax.scaling.ntk import NTKAware as NTKAware
from rope_jax.scaling.proportional import Proportional as Proportional
from rope_jax.scaling.rescale import Rescale as Rescale
from rope_jax.scaling.resonance import Resonance as Resonance
from rope_jax.scaling.temperature import AttentionTemperature as AttentionTemperature
from rope_jax.scaling.yarn import DynamicYaRN as DynamicYaRN
from rope_jax.scaling.yarn import YaRN as YaRN

# Every method by the name that configurations and results use. A new method adds its row here.
METHODS: MappingProxyType[str, type[FrequencyTransform]] = MappingProxyType(
    {
        method.__name__: method
        for method in (
            Identity,
            PositionInterpolation,
            NTKAware,
            BaseChange,
            DynamicNTK,
            NTKByParts,
            YaRN,
            DynamicYaRN,
            Llama3,
            LongRoPE,
            ClippedRoPE,
            Proportional,
            Resonance,
            Rescale,
            AttentionTemperature,
            Drop,
        )
    }
)

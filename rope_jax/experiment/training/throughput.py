"""How much of the hardware a step uses: its arithmetic against what the chips can do."""

from collections.abc import Mapping
from types import MappingProxyType

from rope_jax.nn import DecoderConfig

PEAK: Mapping[str, float] = MappingProxyType(
    {
        "TPU v4": 275e12,
        "TPU v5 lite": 197e12,
        "TPU v5e": 197e12,
        "TPU v5": 459e12,
        "TPU v5p": 459e12,
        "TPU v6 lite": 918e12,
        "TPU v6e": 918e12,
        "NVIDIA A100": 312e12,
        "NVIDIA H100": 989e12,
        "NVIDIA H200": 989e12,
        "NVIDIA B200": 2250e12,
    }
)
"""Kind of device, or how its name begins -> dense bfloat16 operations per second, by its maker."""


def peak(kind: str) -> float | None:
    """Operations per second of a device of a kind, as `jax.Device.device_kind` has it; None: not known, as for CPUs."""
    fitting = [name for name in PEAK if kind.startswith(name)]
    return PEAK[max(fitting, key=len)] if fitting else None


def model_flops(shape: DecoderConfig, parameters: int, length: int) -> float:
    """Operations of the model for a trained token, recomputation not counted.

        6 N + 12 layers heads head_dim length,   N: weights that tokens are multiplied by

    Attention counts as if every query saw the whole row, and windows as their size.

    Args:
      shape: the decoder.
      parameters: all of its weights.
      length: tokens of a row.

    Reference: Chowdhery et al., arXiv 2204.02311, appendix B.
    """
    # An embedding that is not the unembedding as well is looked up, not multiplied by.
    multiplied = parameters if shape.tied else parameters - shape.vocab * shape.embed
    windows = dict(shape.windows)
    reached = sum(min(windows.get(group, length), length) for group in shape.layer_groups)
    return 6.0 * multiplied + 12.0 * shape.heads * shape.attention.head_width * reached


def utilisation(flops: float, seconds: float, kind: str, devices: int) -> float | None:
    """Model FLOPs utilisation: the share of the devices' peak that operations in a time are; None: peak not known."""
    each = peak(kind)
    return None if each is None else flops / seconds / (each * devices)

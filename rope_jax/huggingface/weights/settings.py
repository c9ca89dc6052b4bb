"""Keys of a raw configuration that shape a model, with the defaults of its model type, and checks that name the key."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rope_jax.huggingface.weights.wording import brief

ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
    }
)
# Of a size or a position, which are 32-bit integers on every device.
LARGEST = 2**31 - 1
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Settings:
    """A raw configuration and what its model type means by the keys that it leaves out."""

    raw: Mapping[str, Any]
    defaults: Mapping[str, Any]
    model: str

    def find(self, key: str) -> Any:
        """The value, null included; the default of the model type where the key is absent.

        Raises:
          ValueError: absent, and without a default.
        """
        if key in self.raw:
            return self.raw[key]
        if key not in self.defaults:
            raise ValueError(
                f"`{key}` must be given for the model type {self.model!r}; got none. Add it to the configuration."
            )
        return self.defaults[key]

    def count(self, key: str) -> int:
        """A whole number from 1 on; null is absence."""
        found = self.find(key)
        value = self.defaults.get(key) if found is None else found
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            rule = "of at most 32 bits" if isinstance(value, int) and value > LARGEST else "of at least 1"
            raise ValueError(f"`{key}` must be an integer {rule}; got {brief(value)}. Correct the configuration.")
        return value

    def maybe_count(self, key: str) -> int | None:
        """A whole number from 1 on, or null."""
        return None if self.find(key) is None else self.count(key)

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self.find(key)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not math.isfinite(value) or value <= 0:
            raise ValueError(f"`{key}` must be a number above 0; got {brief(value)}. Correct the configuration.")
        return float(value)

    def maybe_number(self, key: str) -> float | None:
        """A finite number above 0, or null."""
        return None if self.find(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """True or false; null is absence."""
        found = self.find(key)
        value = self.defaults.get(key) if found is None else found
        if not isinstance(value, bool):
            raise TypeError(f"`{key}` must be true or false; got {brief(value)}. Correct the configuration.")
        return value

    def activation(self, key: str) -> str:
        """The MLP's activation under the decoder's name for it."""
        value = self.find(key)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ValueError(
                f"`{key}` must be one of {', '.join(sorted(ACTIVATIONS))}; got {brief(value)}. "
                "The decoder has no other activation."
            )
        return ACTIVATIONS[value]

    def layer_types(self) -> tuple[str, ...] | None:
        """The type of each layer where the file lists them."""
        types, layers = self.raw.get("layer_types"), self.count("num_hidden_layers")
        if types is None:
            return None
        if not isinstance(types, list | tuple) or len(types) != layers:
            raise ValueError(
                f"`layer_types` must list the type of each of {layers} layers; got {brief(types)}. Complete it."
            )
        unknown = [kind for kind in types if kind not in (FULL, SLIDING)]
        if unknown:
            raise ValueError(
                f"`layer_types` must hold {FULL} and {SLIDING} alone; got {brief(unknown[0])}. "
                "The decoder has no other kind of layer."
            )
        return tuple(types)

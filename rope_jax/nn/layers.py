"""The plain layers: a dense projection, the norms, the MLP. Results are as wide as their input."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "silu": jax.nn.silu,
        "gelu": partial(jax.nn.gelu, approximate=False),
        "gelu_tanh": partial(jax.nn.gelu, approximate=True),
        "relu": jax.nn.relu,
    }
)


class Dense(nnx.Module):
    """y = x W + b on the last axis, W [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), (inputs, outputs), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """The projection of x."""
        y = project(x, self.kernel[...])
        return y if self.bias is None else y + self.bias[...].astype(x.dtype).reshape((1,) * (y.ndim - 1) + (-1,))


def project(
    x: Float[Array, "*batch inputs"], kernel: Float[Array, "inputs outputs"], dtype: Any = None
) -> Float[Array, "*batch outputs"]:
    """x W in `dtype` (default: that of x)."""
    # XLA's CPU backend runs the gradient of W slowly unless the tokens are one axis.
    tokens = x.reshape(-1, x.shape[-1])
    y = jnp.matmul(tokens, kernel.astype(x.dtype), preferred_element_type=x.dtype if dtype is None else dtype)
    return y.reshape(*x.shape[:-1], kernel.shape[1])


class RMSNorm(nnx.Module):
    """y = scale * x / sqrt(mean(x^2) + epsilon) on the last axis, in float32 (arXiv 1910.07467)."""

    def __init__(self, width: int, epsilon: float) -> None:
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """x with its mean square brought to one, times the scale."""
        wide = x.astype(jnp.float32)
        normal = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        return (normal * _row(self.scale, x)).astype(x.dtype)


class LayerNorm(nnx.Module):
    """y = scale * (x - mean(x)) / sqrt(var(x) + epsilon) + bias on the last axis, in float32 (arXiv 1607.06450)."""

    def __init__(self, width: int, epsilon: float) -> None:
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """x with mean zero and variance one, times the scale, plus the bias."""
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + self.epsilon)
        return (normal * _row(self.scale, x) + _row(self.bias, x)).astype(x.dtype)


def _row(param: Any, x: Array) -> Array:
    """A parameter of the last axis in float32, with the axes of x."""
    return param[...].astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))


class MLP(nnx.Module):
    """y = (act(x W_gate) * x W_up) W_down (arXiv 2002.05202), or act(x W_up) W_down when it is not gated."""

    def __init__(self, embed: int, width: int, *, activation: str, gated: bool, bias: bool, rngs: nnx.Rngs) -> None:
        self.gate = Dense(embed, width, bias=bias, rngs=rngs) if gated else None
        self.up = Dense(embed, width, bias=bias, rngs=rngs)
        self.down = Dense(width, embed, bias=bias, rngs=rngs)
        self.activation = activation

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        """The MLP of x."""
        act = _ACTIVATIONS[self.activation]
        return self.down(act(self.up(x)) if self.gate is None else act(self.gate(x)) * self.up(x))

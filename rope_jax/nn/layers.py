"""The plain layers: a dense projection, RMSNorm, SwiGLU. Parameters are float32, results as wide as their input."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

_EPSILON = 1e-6


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
    """y = scale * x / sqrt(mean(x^2) + 1e-6) on the last axis, in float32 (arXiv 1910.07467)."""

    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """x with its mean square brought to one, times the scale."""
        wide = x.astype(jnp.float32)
        normal = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _EPSILON)
        return (normal * self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


class SwiGLU(nnx.Module):
    """y = (silu(x W_gate) * x W_up) W_down (arXiv 2002.05202)."""

    def __init__(self, embed: int, mlp: int, *, bias: bool, rngs: nnx.Rngs) -> None:
        self.gate = Dense(embed, mlp, bias=bias, rngs=rngs)
        self.up = Dense(embed, mlp, bias=bias, rngs=rngs)
        self.down = Dense(mlp, embed, bias=bias, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        """The gated MLP of x."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))

"""Formulas in float64 wherever they run, carried as planes of float32.

Frequencies must be known to more than float32: at position 10 million a relative error of 2^-24 turns the fastest
pair by half a radian. A schedule therefore carries each float64 number as three float32 whose sum is that number
exactly. Formulas are written once against `xp`: NumPy on the host, and `jax.numpy` under a local 64-bit context where
an operand is traced (a length, a factor being differentiated). Nothing 64-bit leaves this module.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from rope_jax.positions import is_traced

Planes = tuple[Float32[Array, "*stack pairs"], Float32[Array, "*stack pairs 2"], Float32[Array, "*stack"]]


def constant(value: np.ndarray) -> Array:
    """A jax array that stays a known value even while a function is being traced."""
    with jax.ensure_compile_time_eval():
        return jnp.asarray(value)


def split(xp: Any, value: Any) -> tuple[Any, Any]:
    """The float32 nearest to each float64, and what is left of it as two more float32."""
    first = value.astype(xp.float32)
    rest = value - first.astype(xp.float64)
    second = rest.astype(xp.float32)
    third = (rest - second.astype(xp.float64)).astype(xp.float32)
    return first, xp.stack([second, third], axis=-1)


def nearest(formula: Callable[..., Any], whole: Array) -> Float32[Array, "..."]:
    """`formula(xp, x)` in float64 at whole numbers x, which have no derivative, rounded once to float32."""
    if not is_traced(whole):
        return constant(np.asarray(formula(np, np.asarray(whole, np.float64))).astype(np.float32))
    with jax.enable_x64(True):
        value: Array = formula(jnp, whole.astype(jnp.float64)).astype(jnp.float32)
    return value


def evaluate(formula: Callable[..., tuple[Any, Any]], operands: Any) -> Planes:
    """`formula(xp, operands)` in float64, its (inv_freq, attention_scale) as float32 planes.

    `operands` is any tree of numbers and arrays; the formula receives it with every array in float64. It returns
    inverse frequencies [*stack, pairs] and scales that broadcast to [*stack, 1]. Derivatives of every order are those
    of the same formula in float32: a derivative needs no more digits than the optimiser that reads it.
    """
    if any(is_traced(leaf) for leaf in jax.tree.leaves(operands)):
        return _evaluate_traced(formula, operands)
    host = jax.tree.map(lambda x: np.asarray(x, np.float64) if _is_array(x) else x, operands)
    inv_freq, residual, scale = _finish(np, *formula(np, host))
    return constant(inv_freq), constant(residual), constant(scale)


def _evaluate_traced(formula: Callable[..., tuple[Any, Any]], operands: Any) -> Planes:
    leaves, structure = jax.tree.flatten(operands)
    arrays = [jnp.asarray(x) for x in leaves if _is_array(x)]

    def fill(values: list[Any]) -> Any:
        rest = iter(values)
        return jax.tree.unflatten(structure, [next(rest) if _is_array(x) else x for x in leaves])

    def in_float32(*values: Any) -> tuple[Any, Any]:
        inv_freq, scale = formula(jnp, fill([v.astype(jnp.float32) for v in values]))
        return _align(jnp, inv_freq, scale)

    @jax.custom_jvp
    def planes(*values: Any) -> Planes:
        with jax.enable_x64(True):
            return _finish(jnp, *formula(jnp, fill([v.astype(jnp.float64) for v in values])))

    @planes.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Planes, Planes]:
        out = planes(*primals)
        _, (inv_freq, scale) = jax.jvp(in_float32, primals, tangents)
        # The frequency's tangent travels in the first plane: residuals are digits, not parameters.
        return out, (inv_freq, jnp.zeros_like(out[1]), scale)

    return planes(*arrays)


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def _align(xp: Any, inv_freq: Any, scale: Any) -> tuple[Any, Any]:
    """Give both results the same leading axes; the scale loses its last one."""
    stack = np.broadcast_shapes(inv_freq.shape[:-1], scale.shape[:-1])
    return xp.broadcast_to(inv_freq, (*stack, inv_freq.shape[-1])), xp.broadcast_to(scale[..., 0], stack)


def _finish(xp: Any, inv_freq: Any, scale: Any) -> tuple[Any, Any, Any]:
    inv_freq, scale = _align(xp, inv_freq, scale)
    first, residual = split(xp, inv_freq)
    return first, residual, scale.astype(xp.float32)

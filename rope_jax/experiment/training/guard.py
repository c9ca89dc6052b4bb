"""Training that diverges stops at once, in words: which step, what to change, what is still good."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree


@jax.jit
def all_finite(state: PyTree) -> Array:
    """Whether every float of the weights and of the optimizer's moments is finite."""
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def check_losses(losses: Sequence[jax.Array], last_step: int, cure: str) -> float:
    """The last of the losses of consecutive steps; waits for the device.

    Raises:
      FloatingPointError: one is not finite; the first such step is named.
    """
    values = np.asarray(jax.device_get(list(losses)))
    broken = np.flatnonzero(~np.isfinite(values))
    if broken.size:
        step = last_step - len(values) + 1 + int(broken[0])
        raise diverged("loss", values[broken[0]], f"at step {step}", cure)
    return float(values[-1])


def check_numbers(values: Any, what: str, step: int, cure: str) -> None:
    """Refuses measured numbers, nested in dicts and lists, that are not finite.

    Raises:
      FloatingPointError: one is not.
    """
    for number in jax.tree.leaves(values):
        if not np.all(np.isfinite(number)):
            raise diverged(what, number, f"at step {step}", cure)


def check_state(state: PyTree, step: int, cure: str) -> None:
    """Refuses weights or moments that are not finite: the loss of a step is that of the weights before it.

    Raises:
      FloatingPointError: they are not.
    """
    if not all_finite(state):
        raise diverged("weights", "NaN or infinity", f"after step {step}", cure)


def diverged(what: str, got: object, when: str, cure: str) -> FloatingPointError:
    """The error."""
    return FloatingPointError(f"`{what}` must stay finite; got {got} {when}. {cure}")

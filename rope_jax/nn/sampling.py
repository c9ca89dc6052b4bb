"""Which token comes next: the likeliest, or one drawn from the distribution or its nucleus."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from rope_jax.attention.validation import held_by_float32


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["temperature", "top_p", "rng", "end_ids"],
    meta_fields=["greedy", "whole"],
)
@dataclass(frozen=True, eq=False)
class Sampler:
    """How tokens are chosen, as data: numbers may differ from call to call without another program.

    Attributes:
      temperature, top_p: float32 numbers.
      rng: the key of all draws; None when greedy.
      end_ids: [ends] int32, the tokens that end a row.
      greedy: the likeliest token, nothing is drawn.
      whole: drawn from the whole distribution, so nothing is sorted.
    """

    # Any: tree transformations build samplers of placeholders.
    temperature: Float32[Array, ""] | Any
    top_p: Float32[Array, ""] | Any
    rng: Any
    end_ids: Int32[Array, "ends"] | Any
    greedy: bool
    whole: bool

    def __call__(self, logits: Float32[Array, "batch vocab"], index: Int32[Array, ""]) -> Int32[Array, "batch"]:
        """The token of every row for new token number `index`; the draw depends on key, index and row alone."""
        if self.greedy:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        step = jax.random.fold_in(self.rng, index)
        keys = jax.vmap(partial(jax.random.fold_in, step))(jnp.arange(logits.shape[0], dtype=jnp.uint32))
        # From the likeliest down, so that no quotient overflows: many infinities could not be told apart.
        below = logits - jnp.max(logits, axis=-1, keepdims=True)
        return jax.vmap(self._drawn)(below / self.temperature, keys)

    def ends(self, tokens: Int32[Array, "batch"]) -> Bool[Array, "batch"]:
        """Which rows a token ends."""
        return jnp.any(tokens[:, None] == self.end_ids[None, :], axis=1)

    def _drawn(self, logits: Float32[Array, "vocab"], key: Any) -> Int32[Array, ""]:
        if self.whole:
            return jax.random.categorical(key, logits).astype(jnp.int32)
        order = jnp.argsort(logits, descending=True)
        falling = logits[order]
        share = jax.nn.softmax(falling)
        # The likeliest tokens until their sum reaches top_p; the first is always among them.
        ahead = jnp.cumsum(share) - share
        kept = jnp.where(ahead < self.top_p, falling, -jnp.inf)
        return order[jax.random.categorical(key, kept)].astype(jnp.int32)


def sampler(temperature: Any, top_p: Any, rng: Any, end_ids: Any, vocab: int) -> Sampler:
    """A sampler from the arguments of `generate`, checked."""
    temperature, top_p = _number("temperature", temperature), _number("top_p", top_p)
    if temperature != 0.0 and not (temperature > 0.0 and held_by_float32(temperature)):
        raise ValueError(
            f"`temperature` must be 0 or a positive finite number in float32; got {temperature}. 0 is greedy."
        )
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"`top_p` must be above 0 and at most 1; got {top_p}. 1 draws from the whole distribution.")
    if temperature == 0.0 and top_p != 1.0:
        raise ValueError(
            f"`top_p` must be 1 at temperature 0, where nothing is drawn; got {top_p}. Give a temperature above 0."
        )
    if temperature > 0.0:
        _check_key(rng)
    return Sampler(
        temperature=jnp.float32(temperature),
        top_p=jnp.float32(top_p),
        rng=None if temperature == 0.0 else rng,
        end_ids=jnp.asarray(_end_ids(end_ids, vocab)),
        greedy=temperature == 0.0,
        whole=top_p == 1.0,
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"`{name}` must be a number; got {value!r}. Write one, such as 1.0.")
    return float(value)


def _check_key(rng: Any) -> None:
    cure = "Pass jax.random.key(seed)."
    if rng is None:
        raise ValueError(f"`rng` must be given at a temperature above 0; got None. {cure}")
    typed = hasattr(rng, "dtype") and jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
    if not typed or rng.shape != ():
        found = f"{rng.dtype}{list(rng.shape)}" if hasattr(rng, "dtype") else type(rng).__name__
        raise TypeError(f"`rng` must be one key of jax.random; got {found}. {cure}")


def _end_ids(end_ids: Any, vocab: int) -> np.ndarray:
    cure = "Write a tuple of token ids; () ends no row early."
    whole = isinstance(end_ids, Sequence) and all(
        isinstance(token, int | np.integer) and not isinstance(token, bool) for token in end_ids
    )
    if not whole:
        raise TypeError(f"`end_ids` must be a sequence of integers; got {end_ids!r}. {cure}")
    if any(not 0 <= token < vocab for token in end_ids):
        raise ValueError(f"`end_ids` must be from 0 to vocab - 1 = {vocab - 1}; got {tuple(end_ids)}. {cure}")
    return np.array(sorted(set(end_ids)), np.int32)

"""The new tokens of a request: filled one by one in a compiled loop, handed out on the host."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32

from rope_jax.nn.decoder import Decoder
from rope_jax.nn.prompt import Prompt
from rope_jax.nn.reading import rounded
from rope_jax.nn.sampling import Sampler


@dataclass(frozen=True, eq=False)
class Generated:
    """What `generate` returns, on the host.

    Attributes:
      tokens: [batch, max_new_tokens] int32; -1 after a row has ended.
      positions: of those tokens; -1 after a row has ended.
      log_probs: [batch, max_new_tokens] float32, log softmax(logits) of each chosen token, whatever the temperature
        and top_p; 0 after a row has ended.
      lengths: [batch], new tokens of each row, its end token included.
      prefills: how often the tokens so far were read: once, and again for every change of schedule.
    """

    tokens: np.ndarray
    positions: np.ndarray
    log_probs: np.ndarray
    lengths: np.ndarray
    prefills: int


class NewTokens(NamedTuple):
    """New tokens so far: [batch, room] tokens and log-probabilities, who is done [batch], and how many there are."""

    tokens: Int32[Array, "batch room"]
    log_probs: Float32[Array, "batch room"]
    done: Bool[Array, "batch"]
    first: Int32[Array, "batch"]
    filled: Int32[Array, ""]

    @classmethod
    def empty(cls, prompt: Prompt, steps: int) -> "NewTokens":
        """None yet, with space for `steps` of them."""
        batch, room = prompt.token_ids.shape[0], rounded(steps)
        return cls(
            tokens=jnp.full((batch, room), -1, jnp.int32),
            log_probs=jnp.zeros((batch, room), jnp.float32),
            done=jnp.zeros((batch,), jnp.bool_),
            first=jnp.asarray(prompt.last + 1),
            filled=jnp.zeros((), jnp.int32),
        )

    def after(self, prompt: Prompt, count: int) -> Prompt:
        """The prompt with the first `count` new tokens behind it."""
        tokens = np.asarray(self.tokens)[:, :count]
        positions = _positions(tokens, prompt)
        pairs = ((prompt.token_ids, tokens), (prompt.positions, positions))
        return Prompt(*(np.concatenate(pair, axis=1) for pair in pairs))

    def with_next(self, decoder: Decoder, hidden: Float[Array, "batch embed"], draw: Sampler) -> "NewTokens":
        """One token more in every row that is not done."""
        logits = decoder.unembed(hidden)
        chosen = draw(logits, self.filled)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1)
        tokens = jnp.where(self.done, -1, chosen)[:, None]
        log_probs = jnp.where(self.done[:, None], 0.0, log_probs)
        return self._replace(
            tokens=jax.lax.dynamic_update_slice(self.tokens, tokens, (jnp.int32(0), self.filled)),
            log_probs=jax.lax.dynamic_update_slice(self.log_probs, log_probs, (jnp.int32(0), self.filled)),
            done=self.done | draw.ends(tokens[:, 0]),
            filled=self.filled + 1,
        )

    def newest(self) -> tuple[Int32[Array, "batch 1"], Int32[Array, "batch 1"]]:
        """The last token of every row and its position: padding where the row is done."""
        tokens = jax.lax.dynamic_slice_in_dim(self.tokens, self.filled - 1, 1, axis=1)
        return tokens, jnp.where(self.done, -1, self.first + self.filled - 1)[:, None]

    def generated(self, prompt: Prompt, steps: int, prefills: int) -> Generated:
        """All of them on the host, once their logits are known to be finite."""
        tokens, log_probs = (np.asarray(part)[:, :steps] for part in (self.tokens, self.log_probs))
        spoiled = np.argwhere(~np.isfinite(log_probs))
        if spoiled.size:
            row, step = spoiled[0]
            raise ValueError(
                f"`model` must give finite logits; got {log_probs[row, step]} for new token {step} of row {row}. "
                "Its weights have diverged, or its dtype is too narrow."
            )
        return Generated(tokens, _positions(tokens, prompt), log_probs, (tokens >= 0).sum(axis=1), prefills)


def _positions(tokens: np.ndarray, prompt: Prompt) -> np.ndarray:
    after = prompt.last[:, None] + 1 + np.arange(tokens.shape[1], dtype=np.int32)[None, :]
    return np.where(tokens < 0, -1, after).astype(np.int32)

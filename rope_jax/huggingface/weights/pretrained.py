"""A pretrained model: decoder, rotary settings, tokenizer and configuration together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float32

from rope_jax import nn
from rope_jax.huggingface.weights.shape import check_rope, of_group, trained_length
from rope_jax.positions import LARGEST_POSITION, check_positions, is_traced, lengths
from rope_jax.schedule import FrequencySchedule
from rope_jax.spec import ModelRope


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model from a checkpoint; `dataclasses.replace(model, rope=...)` gives it other rotary settings.

    Attributes:
      decoder: the weights, as a `nn.Decoder`.
      rope: rotary settings of all layers.
      tokenizer: a `tokenizers.Tokenizer`, None where the checkpoint has none.
      config: the raw configuration.
      source: where it came from.

    Raises:
      ValueError: rotary settings for another number of layers, of another layout, or that the decoder does not apply.
    """

    decoder: nn.Decoder
    rope: ModelRope
    tokenizer: Any
    config: Mapping[str, Any]
    source: str

    def __post_init__(self) -> None:
        check_rope(self.rope, self.decoder.config)

    @property
    def trained_length(self) -> int:
        """Tokens that the model was trained on: `original_max_position_embeddings`, else `max_position_embeddings`."""
        return trained_length(self.config)

    def schedules(self, length: Any = None, rope: ModelRope | None = None) -> dict[str, FrequencySchedule | None]:
        """The schedule of every layer group of the decoder, which the decoder is to be called with.

        Args:
          length: tokens, a number or an array as `RopeSpec.schedule` takes it, for specs that depend on it.
          rope: other rotary settings for the same layers; None: the model's own.
        """
        rope = self.rope if rope is None else rope
        check_rope(rope, self.decoder.config)
        return {
            group: None if spec is None else spec.schedule(length if spec.needs_length else None)
            for group, spec in of_group(rope, self.decoder.config).items()
        }

    def query_scales(self, positions: Any, rope: ModelRope | None = None) -> dict[str, Array | None]:
        """What the queries of every layer group of the decoder are multiplied by, beside the schedules.

        Args:
          positions: [batch or 1, seq] integers.
          rope: other rotary settings for the same layers; None: the model's own.
        """
        rope = self.rope if rope is None else rope
        check_rope(rope, self.decoder.config)
        return {
            group: None if spec is None else spec.logit_scale(positions)
            for group, spec in of_group(rope, self.decoder.config).items()
        }

    def query_rules(self, rope: ModelRope | None = None) -> dict[str, Callable[[Any], Array | None] | None] | None:
        """`query_scales` as rules from positions, `RopeSpec.logit_scale`, which `nn.generate` applies to every token.

        Args:
          rope: other rotary settings for the same layers; None: the model's own.

        Returns:
          Layer group -> rule, None where queries stay as they are; None where nothing scales.
        """
        rope = self.rope if rope is None else rope
        check_rope(rope, self.decoder.config)
        rules: dict[str, Callable[[Any], Array | None] | None] = {
            group: None if spec is None or (spec.query_scale is None and spec.softmax_scale == 1) else spec.logit_scale
            for group, spec in of_group(rope, self.decoder.config).items()
        }
        return rules if any(rules.values()) else None

    def logits(
        self,
        token_ids: Any,
        positions: Any = None,
        segments: Any = None,
        rope: ModelRope | None = None,
        streams: Any = None,
    ) -> Float32[Array, "*batch seq vocab"]:
        """Logits of the next token after every token; rows (or segments) of their own length under specs that need it.

        The scales of the rope, `softmax_scale` and `query_scale`, multiply the queries.

        Args:
          token_ids: [batch, seq] or, for one row, [seq] integers.
          positions: [batch or 1, seq] or [seq] integers, negative is padding; None: 0, 1, 2, ...
          segments: document ids of the same shapes, 0 is padding.
          rope: other rotary settings for the same layers.
          streams: [axes, batch or 1, seq], or [axes, seq] for one row: the positions that pairs turn by under m-RoPE;
            None: `positions` in all of them, as for text.

        Returns:
          float32 [batch, seq, vocab], or [seq, vocab] for one row.

        Raises:
          TypeError, ValueError: what `Decoder` refuses, before anything is computed.

        Example:
          model.logits(tokenizer.encode("Once upon a time").ids, rope=stretched)
        """
        ids = _integers(token_ids, "token_ids", "Pass tokenizer.encode(text).ids; pad rows to one length")
        if ids.ndim == 1:
            streams = None if streams is None else _integers(streams, "streams")[..., None, :]
            return self.logits(ids[None], _row(positions, "positions"), _row(segments, "segments"), rope, streams)[0]
        if ids.ndim != 2 or 0 in ids.shape:
            raise ValueError(
                f"`token_ids` must be [batch, seq] or [seq], not empty; got shape {ids.shape}. Reshape it."
            )
        places = jnp.arange(ids.shape[1], dtype=jnp.int32) if positions is None else _integers(positions, "positions")
        places = _rows(places, "positions", ids.shape)
        documents = None if segments is None else _rows(_integers(segments, "segments"), "segments", ids.shape)
        padding = places < 0 if documents is None else (places < 0) | (documents == 0)
        self._check_ids(ids, padding)
        rope = self.rope if rope is None else rope
        check_rope(rope, self.decoder.config)
        length = None
        if rope.needs_length:
            length = lengths(jnp.where(padding, -1, places), documents)
        turned = {"schedule": self.schedules(length, rope), "query_scale": self.query_scales(places, rope)}
        given = turned | {"streams": None if streams is None else _integers(streams, "streams")}
        return _logits(*nnx.split(self.decoder), ids, places, documents, given)

    def _check_ids(self, ids: Array, padding: Array) -> None:
        if is_traced(ids) or is_traced(padding):
            return
        host, vocab = np.where(np.asarray(padding), 0, np.asarray(ids)), self.decoder.config.vocab
        if not 0 <= host.min() <= host.max() < vocab:
            raise ValueError(
                f"`token_ids` must be from 0 to vocab - 1 = {vocab - 1}; got {host.min()} to {host.max()}. "
                "Use the tokenizer of the model."
            )


@partial(jax.jit, static_argnums=0)
def _logits(structure: Any, state: Any, ids: Array, positions: Array, segments: Array | None, given: Any) -> Array:
    logits: Array = nnx.merge(structure, state)(ids, positions=positions, segments=segments, **given)
    return logits


def _integers(values: Any, argument: str, cure: str = "Count tokens in integers") -> Array:
    """As int32; what cannot be one says so with a cure of its own."""
    if not isinstance(values, jax.Array):
        try:
            values = np.asarray(values)
        except ValueError as error:
            # Lists of different lengths.
            raise ValueError(f"`{argument}` must be rows of one length; got {error} {cure}.") from error
        # An empty list is one of floats to NumPy.
        values = values if values.size else values.astype(np.int32)
    if not jnp.issubdtype(values.dtype, jnp.integer):
        raise TypeError(f"`{argument}` must be integers; got dtype {values.dtype}. {cure}.")
    if not is_traced(values) and values.size and abs(extreme := _extreme(values)) > LARGEST_POSITION:
        raise ValueError(f"`{argument}` must be integers of 32 bits; got {extreme}. {cure}.")
    return check_positions(values, argument)


def _extreme(values: Any) -> int:
    """The entry furthest from zero."""
    host = np.asarray(values)
    return max(int(host.min()), int(host.max()), key=abs)


def _row(values: Any, argument: str) -> Any:
    return None if values is None else jnp.atleast_2d(_integers(values, argument))


def _rows(ids: Array, argument: str, shape: tuple[int, ...]) -> Array:
    """[batch, seq], from that, [1, seq] or [seq]."""
    if ids.ndim not in (1, 2) or ids.shape[-1] != shape[1] or ids.shape[:-1] not in ((), (1,), (shape[0],)):
        raise ValueError(
            f"`{argument}` must be [batch or 1, seq] or [seq] for `token_ids` {shape}; got shape {ids.shape}. "
            "Give every token its own."
        )
    return jnp.broadcast_to(ids, shape)

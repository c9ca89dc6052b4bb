"""A checkpoint as the weights of an experiment start from it: its shape and tokenizer first, weights when needed."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from flax import nnx
from jaxtyping import PyTree

from rope_jax import nn
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.encoding import Encoding, encoding_of
from rope_jax.experiment.model import Subject, fresh_subject
from rope_jax.spec import ModelRope


def checkpoint_name(source: str) -> str:
    """What a checkpoint is called: the last part of its path or hub id, without the ending of a GGUF file.

    Example:
      >>> checkpoint_name("models/SmolLM2-135M.gguf")
      'SmolLM2-135M'
    """
    return Path(source).resolve().name.removesuffix(".gguf")


def subject_of(config: ExperimentConfig) -> Subject:
    """The model that a config describes; of a checkpoint, its configuration is read and no weights.

    Raises:
      ValueError, TypeError, OSError: no such checkpoint, or one that cannot be read.
    """
    return _published_subject(config) if config.starts_trained else fresh_subject(config)


def _published_subject(config: ExperimentConfig) -> Subject:
    """The model of a checkpoint: its rotary settings by the decoder's layer groups, its shape, its trained length."""
    # Here, so that a model that is trained here needs none of the packages that read checkpoints.
    from rope_jax.huggingface.weights.checkpoint import open_checkpoint

    source = config.model.checkpoint
    try:
        opened = open_checkpoint(source)
    except (ValueError, TypeError, OSError) as error:
        kinds = (FileNotFoundError, OSError, TypeError)
        kind = next((kind for kind in kinds if isinstance(error, kind)), ValueError)
        raise kind(f"`model.checkpoint`, {source}: {error}") from error
    outline = opened.outline
    shape = outline.decoder_config
    specs = dict(zip(shape.layer_groups, (outline.rope.specs[g] for g in outline.rope.layer_groups), strict=True))
    return Subject(
        rope=ModelRope(specs, shape.layer_groups, outline.rope.sources),
        windows=dict(shape.windows),
        trained_length=config.train.length,
        published=shape,
        name=checkpoint_name(source),
        own_length=outline.trained_length,
        own_rope=outline.rope,
        parameters=outline.parameters,
        tokenizer=opened.tokenizer,
    )


class Checkpoint:
    """One checkpoint; each part is read once, when it is first asked for.

    Args:
      config: the experiment, with a checkpoint.
      subject: its model.
    """

    def __init__(self, config: ExperimentConfig, subject: Subject) -> None:
        self.source = config.model.checkpoint
        self.subject = subject
        self._dtype = config.model.dtype

    @cached_property
    def digest(self) -> str:
        """What tells the checkpoint apart from every other one, whatever it is called."""
        from rope_jax.huggingface import weights

        return str(weights.digest(self.source))

    @cached_property
    def encoding(self) -> Encoding:
        """Its tokenizer.

        Raises:
          ValueError: it has none.
        """
        tokenizer = self.subject.tokenizer
        if tokenizer is None or self.subject.published is None:
            raise ValueError(
                f"`model.checkpoint` must come with a tokenizer; got none in {self.source}. Add its tokenizer.json."
            )
        return encoding_of(tokenizer, self.subject.published.vocab)

    @cached_property
    def _pretrained(self) -> Any:
        from rope_jax.huggingface import weights

        return weights.load_pretrained(self.source, dtype=self._dtype)

    @property
    def params(self) -> PyTree:
        """Its weights, as the decoder's parameters."""
        return nnx.split(self._pretrained.decoder)[1]

    @cached_property
    def _opened(self) -> Any:
        from rope_jax.huggingface.weights.checkpoint import open_checkpoint

        return open_checkpoint(self.source)

    def _tuned(self, decoder: nn.Decoder, rope: ModelRope, reached: int) -> Any:
        """The model that is to be saved."""
        from rope_jax.huggingface import to_huggingface, weights
        from rope_jax.huggingface.weights.shape import TRAINED

        outline = self._opened.outline
        length = max(reached, outline.trained_length)
        raw = dict(outline.config) | {TRAINED: length}
        if all(_says_the_original(settings) for settings in _settings(to_huggingface(rope))):
            raw["max_position_embeddings"] = length
        return weights.Pretrained(decoder, rope, self._opened.tokenizer, raw, self.source)

    def check_saved(self, rope: ModelRope, *, reached: int) -> None:
        """Refuses settings that weights could be tuned with and not be saved with; before any are.

        Args:
          rope, reached: as in `save`.

        Raises:
          ValueError: a configuration of the checkpoint's model type cannot state them.
        """
        from rope_jax.huggingface.weights.saved_config import saved_config

        shape = self._opened.outline.decoder_config
        decoder = nnx.eval_shape(lambda: nn.Decoder(shape, rngs=nnx.Rngs(0)))
        saved_config(self._tuned(decoder, rope, reached), "float32", 5)

    def save(self, params: PyTree, rope: ModelRope, folder: Path, *, reached: int) -> None:
        """Writes tuned weights with the settings they were tuned with, in the form of the checkpoint.

        Its configuration states the longest length that the weights were trained at, of which its longest position is
        another name where no method counts from that.

        Args:
          params: the weights.
          rope: from `exported_rope`.
          folder: made anew.
          reached: the longest length in tokens that they were tuned at.
        """
        from rope_jax.huggingface import weights

        shape = self._opened.outline.decoder_config
        graphdef, _ = nnx.split(nnx.eval_shape(lambda: nn.Decoder(shape, rngs=nnx.Rngs(0))))
        weights.save_pretrained(self._tuned(nnx.merge(graphdef, params), rope, reached), folder)


def _settings(fields: Any) -> Iterator[Mapping[str, Any]]:
    """The rope settings of every layer group of a configuration."""
    if isinstance(fields, Mapping):
        yield from (fields,) if "rope_type" in fields else ()
        for inner in fields.values():
            yield from _settings(inner)


def _says_the_original(settings: Mapping[str, Any]) -> bool:
    """Whether readers count from a length that is stated there, or from none, whatever the longest position is."""
    return settings["rope_type"] == "default" or "original_max_position_embeddings" in settings

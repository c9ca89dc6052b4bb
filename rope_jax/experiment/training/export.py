"""A trained model as a Hugging Face folder, so that a sweep can start from it: of Llama's form, or its checkpoint's."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from rope_jax import nn
from rope_jax.experiment.export import export, exported_rope
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.experiment.training.stages import stage_method, stage_subject
from rope_jax.experiment.training.start import Run
from rope_jax.huggingface import to_huggingface
from rope_jax.spec import ModelRope

FOLDER = "export"


def last_trained(config: RunConfig) -> int:
    """The last stage that trains."""
    return max(index for index, stage in enumerate(config.stages) if stage.steps)


def reached(run: Run) -> int:
    """The longest length that the weights are trained at."""
    return max(stage.pose_target or stage.length for stage in run.config.stages if stage.steps)


def check_exportable(run: Run) -> None:
    """Refuses `export` for a model that no configuration describes.

    Raises:
      ValueError: a setting that Llama has no choice for, or rotary settings that cannot be stated.
    """
    config = run.config
    if any(stage.learnable for stage in config.stages):
        raise ValueError("`export` must be false with learnable frequencies, which no method gives; got true.")
    if not config.steps:
        raise ValueError("`export` must be false without a stage that trains; got true. Leave it out.")
    if not run.starts_trained:
        _check_llama(config)
    index = last_trained(config)
    try:
        rope = trained_rope(run)
        to_huggingface(rope) if run.checkpoint is None else run.checkpoint.check_saved(rope, reached=reached(run))
    except (ValueError, TypeError) as error:
        raise ValueError(f"`export` must be false with the method of stages[{index}]; got true: {error}") from error


def _check_llama(config: RunConfig) -> None:
    model, plain = config.model, type(config.model)()
    names = (
        "qk_norm",
        "bias",
        "thetas",
        "windows",
        "no_rope",
        "softcap",
        "sinks",
        "positional",
        "pattern",
        "rotary_fraction",
    )
    for name in names:
        if getattr(model, name) != getattr(plain, name):
            raise ValueError(
                f"`export` must be false with model.{name} = {getattr(model, name)!r}, which Llama has no word for; "
                "got true. Leave it out."
            )


def trained_rope(run: Run) -> ModelRope:
    """The rotary settings under which the weights were trained last, as a configuration states them."""
    index = last_trained(run.config)
    (method, transform), subject = stage_method(run, index), stage_subject(run, index)
    if run.starts_trained:
        return exported_rope(subject, transform, method.layers)
    edited = subject.composed(transform)
    assert edited is not None  # _check_llama wants positional = "rope"
    (spec,) = edited.specs.values()
    return ModelRope({"all": spec}, ("all",) * run.config.model.layers)


def export_run(run: Run, params: PyTree, vocab: int, folder: Path) -> Path:
    """Writes the model of a run, with its tokenizer (for bytes, one that gives bytes); a folder that is there is kept.

    Llama has no factor on its embedding, so that of a tied model goes into the weights, which are then two tables.

    Args:
      run: the run.
      params: its weights at the end.
      vocab: rows of the embedding.
      folder: of the export.
    """
    whole = multihost_utils.process_allgather(params, tiled=True) if jax.process_count() > 1 else jax.device_get(params)
    if jax.process_index():
        return folder
    rope, checkpoint = trained_rope(run), run.checkpoint
    if checkpoint is not None:
        return export(lambda draft: checkpoint.save(whole, rope, draft, reached=reached(run)), folder)
    return export(lambda draft: _save_llama(run.config, whole, rope, vocab, draft), folder)


def _save_llama(config: RunConfig, whole: PyTree, rope: ModelRope, vocab: int, folder: Path) -> None:
    from rope_jax.huggingface import weights
    from rope_jax.huggingface.weights.shape import decoder_config

    raw = _configuration(config, vocab)
    shape = dataclasses.replace(decoder_config(raw, rope), layout=config.model.layout)
    graphdef, expected = nnx.split(nnx.eval_shape(lambda: nn.Decoder(shape, rngs=nnx.Rngs(0))))
    pure = _untied(nnx.to_pure_dict(whole), config) if config.model.tied else nnx.to_pure_dict(whole)
    nnx.replace_by_pure_dict(expected, jax.tree.map(jnp.asarray, pure))
    model = weights.Pretrained(nnx.merge(graphdef, expected), rope, _tokenizer(config), raw, config.name)
    weights.save_pretrained(model, folder)


def _configuration(config: RunConfig, vocab: int) -> dict[str, Any]:
    """config.json, but for the rotary settings."""
    model, reached = config.model, max(stage.length for stage in config.stages if stage.steps)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": model.embed,
        "intermediate_size": model.mlp,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": reached,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _untied(params: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """The same function from two tables."""
    table = np.asarray(params["embedding"], np.float32)
    scaled = table * np.float32(config.model.embed**0.5)
    return {**params, "embedding": scaled, "unembedding": np.ascontiguousarray(table.T)}


def _tokenizer(config: RunConfig) -> Any:
    """The run's tokenizer, or one whose ids are the bytes of a text in UTF-8."""
    import tokenizers

    if config.data.tokenizer:
        from rope_jax.experiment.recipe.vocabulary import read_vocabulary

        encoding = read_vocabulary(config.data).encoding
        return None if encoding is None else encoding.tokenizer
    vocab = {letter: byte for byte, letter in _letters().items()}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def _letters() -> dict[int, str]:
    """The letter that byte-level tokenizers show each byte as: itself where it is visible, else one from 256 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}

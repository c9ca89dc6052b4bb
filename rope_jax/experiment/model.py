"""The decoder of an experiment, and the schedules that its layer groups are called with."""

from collections.abc import Callable

from flax import nnx

from rope_jax import nn
from rope_jax.experiment.config import ExperimentConfig, ModelConfig
from rope_jax.schedule import FrequencySchedule, geometric_schedule


def make_decoder(config: ExperimentConfig, *, vocab: int, seed: int) -> nn.Decoder:
    """A freshly initialised decoder.

    Args:
      config: the experiment; learned positions get a row for every position up to its longest length.
      vocab: number of token ids of the task.
      seed: of the initial weights.
    """
    model = config.model
    shape = nn.DecoderConfig(
        vocab=vocab,
        embed=model.embed,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        mlp=model.mlp,
        tied=model.tied,
        qk_norm=model.qk_norm,
        bias=model.bias,
        pattern=model.pattern,
        windows=tuple(sorted(model.windows.items())),
        softcap=model.softcap,
        sinks=model.sinks,
        positional=model.positional,
        max_length=config.longest if model.positional == "learned" else None,
        layout=model.layout,
        remat=model.remat,
        dtype=model.dtype,
    )
    return nn.Decoder(shape, rngs=nnx.Rngs(seed))


def extended_groups(config: ExperimentConfig) -> tuple[str, ...]:
    """The layer groups that a scaling method edits.

    A group without rotation has nothing to edit; a group whose sliding window lies within the trained length meets no
    distance that training did not show it, so it keeps the plain frequencies.
    """
    model = config.model
    if model.positional != "rope":
        return ()
    inside = {group for group, window in model.windows.items() if window <= config.train.length}
    return tuple(group for group in dict.fromkeys(model.pattern) if group not in inside and group not in model.no_rope)


def plain_schedule(model: ModelConfig) -> FrequencySchedule:
    """The schedule that the model is trained with."""
    return geometric_schedule(model.rotary_dim, theta=model.theta)


def group_schedules(
    config: ExperimentConfig, transform: Callable[..., FrequencySchedule], *, length: int
) -> dict[str, FrequencySchedule | None] | None:
    """What the decoder is called with: layer group -> schedule, or None for a model that is not rotated.

    Args:
      config: the experiment.
      transform: the scaling method, called as `transform(schedule, length=length)`.
      length: tokens in the sequence.
    """
    model = config.model
    if model.positional != "rope":
        return None
    plain = plain_schedule(model)
    extended = transform(plain, length=length)
    edited = extended_groups(config)
    return {
        group: None if group in model.no_rope else extended if group in edited else plain
        for group in dict.fromkeys(model.pattern)
    }

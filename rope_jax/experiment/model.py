"""The decoder of an experiment, and the schedules that its layer groups are called with."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flax import nnx

from rope_jax import nn
from rope_jax.attention.score_maps import ScoreMap
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.layers import GroupMaps, Layers, Rule, chosen_groups, edited_groups, scaled_groups
from rope_jax.scaling import chain
from rope_jax.schedule import FrequencySchedule
from rope_jax.spec import ModelRope, RopeSpec

Schedules = dict[str, FrequencySchedule | None] | None


@dataclass(frozen=True, eq=False)
class Subject:
    """The model of an experiment without its weights: how it is rotated, and where that may be edited.

    Args:
      rope: the settings before any method, by the decoder's layer groups; None for a model that is not rotated.
      windows: layer group -> sliding window in tokens.
      trained_length: tokens that the weights are trained on.
      published: the decoder's config of a checkpoint; None for a model that is trained here.
      name: of the checkpoint.
      own_length: what the checkpoint itself gives for its trained length.
      parameters: of the checkpoint.
      own_rope: the checkpoint's settings by the layer groups of its configuration.
      tokenizer: of the checkpoint, None where it has none.
    """

    rope: ModelRope | None
    windows: dict[str, int] = field(default_factory=dict)
    trained_length: int = 64
    published: nn.DecoderConfig | None = None
    name: str = ""
    own_length: int | None = None
    own_rope: ModelRope | None = None
    parameters: int = 0
    tokenizer: Any = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers must know of the checkpoint."""
        doubts = () if self.own_rope is None else self.own_rope.warnings
        if self.own_length in (None, self.trained_length):
            return doubts
        return (
            f"{self.name} gives {self.own_length} tokens for its trained length; train.length = "
            f"{self.trained_length} is taken for it.",
            *doubts,
        )

    def groups(self, layers: Layers = "auto") -> tuple[str, ...]:
        """The layer groups of a choice, rotated or not; see `layers.chosen_groups`."""
        return () if self.rope is None else chosen_groups(self.rope, self.windows, layers)

    def edited(self, layers: Layers = "auto") -> tuple[str, ...]:
        """The layer groups whose frequencies a method edits; see `layers.edited_groups`."""
        return () if self.rope is None else edited_groups(self.rope, self.windows, layers, self.trained_length)

    def check_reach(self, layers: Layers, entry: str, method: str, *, scales: bool) -> None:
        """Refuses a method that no layer would follow.

        Args:
          layers: which it edits.
          entry: of the config that it stands in.
          method: as it is written.
          scales: whether it is nothing but a logit scale, which needs no rotation where its layers were chosen.

        Raises:
          ValueError: no such layers, or none of them turns.
        """
        got = f"got {method!r} for a model without"
        if self.rope is not None and not self.groups(layers):
            missing = "a sliding window" if layers == "sliding" else "a layer that sees the whole past"
            raise ValueError(f"{entry} must choose layers that the model has; {got} {missing}. Drop `@ {layers}`.")
        if self.edited(layers) or (scales and layers != "auto"):
            return
        which = {"auto": " whose window exceeds the trained length", "all": ""}.get(layers, f" among the {layers} ones")
        if layers == "auto" and self.edited("all"):
            cure = "Write `@ all` behind it to edit layers within their windows."
        elif self.published is None:
            cure = "Leave a group of model.pattern out of no_rope."
        else:
            cure = "Choose other layers, or another checkpoint."
        raise ValueError(f"{entry} must reach a rotated layer{which}; {got} one. {cure}")

    def composed(self, transform: Callable[..., FrequencySchedule], layers: Layers = "auto") -> ModelRope | None:
        """The model's rotary settings with a method on top of its own in every group that it edits."""
        if self.rope is None:
            return None
        edited = self.edited(layers)
        specs = {
            group: dataclasses.replace(spec, transform=chain(spec.transform, transform))  # type: ignore[arg-type]
            if spec is not None and group in edited
            else spec
            for group, spec in self.rope.specs.items()
        }
        return dataclasses.replace(self.rope, specs=specs)

    def mapped(self, score_map: ScoreMap | None, layers: Layers = "auto") -> ScoreMap | GroupMaps | None:
        """The score map of a method for all layers, or by group where layers are chosen."""
        if score_map is None or layers in ("auto", "all"):
            return score_map
        chosen = self.groups(layers)
        return tuple((group, score_map if group in chosen else None) for group in self.groups())

    def scaled(self, rule: Rule | None, layers: Layers = "auto") -> dict[str, Rule | None] | None:
        """What every group's queries are multiplied by; see `layers.scaled_groups`."""
        return None if self.rope is None else scaled_groups(self.rope, rule, self.groups(layers))

    def schedules(
        self, transform: Callable[..., FrequencySchedule], *, length: int, layers: Layers = "auto"
    ) -> Schedules:
        """What the decoder is called with: layer group -> schedule, or None for a model that is not rotated.

        Args:
          transform: the scaling method, called as `transform(schedule, length=length)`.
          length: tokens in the sequence.
          layers: which layers it edits.
        """
        rope = self.composed(transform, layers)
        return None if rope is None else rope.schedules(length)

    def recorded(self, schedules: Schedules, layers: Layers = "auto") -> FrequencySchedule | None:
        """The schedule that a row shows: that of the first group that the method edits, else the first that turns."""
        turning = {group: schedule for group, schedule in (schedules or {}).items() if schedule is not None}
        return next((turning[group] for group in (*self.edited(layers), *turning)), None)


def fresh_subject(config: ExperimentConfig) -> Subject:
    """The model that is trained here."""
    model = config.model
    if model.positional != "rope":
        return Subject(None, trained_length=config.train.length)
    plain = RopeSpec(model.rotary_dim, theta=model.theta, layout=model.layout, head_dim=model.head_dim)
    specs = {
        group: None
        if group in model.no_rope
        else dataclasses.replace(plain, theta=model.thetas.get(group, model.theta))
        for group in dict.fromkeys(model.pattern)
    }
    return Subject(ModelRope(specs, tuple(model.pattern)), dict(model.windows), config.train.length)


def decoder_config(config: ExperimentConfig, subject: Subject, *, vocab: int) -> nn.DecoderConfig:
    """The shape of the decoder: the checkpoint's, or that of the settings.

    Args:
      config: the experiment; learned positions get a row for every position up to its longest length.
      subject: its model.
      vocab: number of token ids of the task.
    """
    model = config.model
    if subject.published is not None:
        return dataclasses.replace(subject.published, remat=model.remat, dtype=model.dtype)
    return nn.DecoderConfig(
        vocab=vocab,
        windows=tuple(sorted(model.windows.items())),
        max_length=config.longest if model.positional == "learned" else None,
        **{name: getattr(model, name) for name in SHAPE},
    )


SHAPE = (
    *("embed", "layers", "heads", "kv_heads", "head_dim", "mlp", "tied", "qk_norm", "bias", "pattern", "softcap"),
    *("sinks", "positional", "layout", "remat", "dtype"),
)


def make_decoder(config: ExperimentConfig, *, vocab: int, seed: int) -> nn.Decoder:
    """A freshly initialised decoder of the shape that the settings give; see `decoder_config`."""
    return nn.Decoder(decoder_config(config, fresh_subject(config), vocab=vocab), rngs=nnx.Rngs(seed))


def group_schedules(config: ExperimentConfig, transform: Callable[..., FrequencySchedule], *, length: int) -> Schedules:
    """What the decoder of the settings is called with under a method; see `Subject.schedules`."""
    return fresh_subject(config).schedules(transform, length=length)

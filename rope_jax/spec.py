"""A whole head's, and a whole model's, rotary settings as frozen values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rope_jax.layout import Layout, check_layout
from rope_jax.positions import check_positions
from rope_jax.scaling.base import FrequencyTransform, Identity
from rope_jax.scaling.checks import check_number
from rope_jax.schedule import FrequencySchedule, check_rotary_dim, check_theta, geometric_schedule


@dataclass(frozen=True)
class RopeSpec:
    """What a RoPE layer does: width, base, scaling method, pairing.

        schedule(length) = transform(geometric_schedule(rotary_dim, theta), length)

    Args:
      rotary_dim: channels of a head that turn; even.
      theta: the base.
      transform: the scaling method.
      layout: "half" or "interleaved"; to be given to `rotate` or to the model's config.
      head_dim: width of the head, at least `rotary_dim`, which it defaults to; the rest passes through.
      pair_axes: for each pair the position stream that turns it (m-RoPE).
      softmax_scale: multiplies the logits of the whole head (not only of rotated channels); see `scale_queries`.
      query_scale: a rule from positions [*batch, seq] to a factor on queries; see `scale_queries`.

    Hashable and comparable when its numbers are Python numbers.

    Example:
      >>> RopeSpec(64, theta=1e4).schedule().pairs
      32
    """

    rotary_dim: int
    theta: float = 10_000.0
    transform: FrequencyTransform = field(default_factory=Identity)
    layout: Layout = "half"
    head_dim: int | None = None
    pair_axes: tuple[int, ...] | None = None
    softmax_scale: float = 1.0
    query_scale: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        check_rotary_dim(self.rotary_dim)
        check_theta(self.theta)
        check_layout(self.layout)
        if not isinstance(self.transform, FrequencyTransform):
            raise TypeError(f"`transform` must be a FrequencyTransform; got {self.transform!r}.")
        if self.head_dim is None:
            object.__setattr__(self, "head_dim", self.rotary_dim)
        _check_head_dim(self.head_dim, self.rotary_dim)
        if self.pair_axes is not None:
            object.__setattr__(self, "pair_axes", tuple(self.pair_axes))
            _check_pair_axes(self.pair_axes, self.rotary_dim // 2)
        if self.query_scale is not None and not callable(self.query_scale):
            raise TypeError(f"`query_scale` must be a rule on positions or None; got {self.query_scale!r}.")
        check_number("softmax_scale", self.softmax_scale, "above 0", lambda v: v > 0)

    @property
    def needs_length(self) -> bool:
        """Whether the schedule depends on the length of the sequence."""
        return self.transform.needs_length

    def scale_queries(self, q: Float[Array, "*batch seq heads head_dim"], positions: Any) -> Array:
        """Queries times the spec's logit scales: `q softmax_scale query_scale(positions)`, in the dtype of q.

        Scales the logits of the whole head, unlike a schedule's attention scale; call it before `attend`.

        Args:
          q: [*batch, seq, heads, head_dim].
          positions: [*batch, seq] integers, batch axes 1 or equal; read by `query_scale` alone.

        Example:
          >>> spec = RopeSpec(8, softmax_scale=2.0)
          >>> spec.scale_queries(jnp.ones((1, 3, 2, 8)), jnp.arange(3)[None])[0, 0, 0, 0].item()
          2.0
        """
        if not jnp.issubdtype(q.dtype, jnp.floating):
            raise TypeError(f"`q` must be floating queries; got dtype {q.dtype}.")
        if self.query_scale is None:
            return (q.astype(jnp.float32) * self.softmax_scale).astype(q.dtype)
        positions = check_positions(positions)
        fits = positions.ndim == q.ndim - 2 and positions.shape[-1] == q.shape[-3]
        if not fits or not all(n in (1, m) for n, m in zip(positions.shape, q.shape, strict=False)):
            raise ValueError(
                f"`positions` must be [*batch, seq] for `q` {q.shape}, batch axes 1 or equal; got {positions.shape}."
            )
        scale = jnp.broadcast_to(jnp.asarray(self.logit_scale(positions)), positions.shape)[..., None, None]
        return (q.astype(jnp.float32) * scale).astype(q.dtype)

    def logit_scale(self, positions: Any) -> Array | None:
        """`softmax_scale query_scale(positions)` in float32; [] without a rule, None where logits stay as they are.

        Args:
          positions: [*batch, seq] integers; read by `query_scale` alone.

        Example:
          >>> RopeSpec(8, softmax_scale=2.0).logit_scale(jnp.arange(3)).item()
          2.0
        """
        if self.query_scale is None:
            return None if self.softmax_scale == 1 else jnp.float32(self.softmax_scale)
        rule = jnp.asarray(self.query_scale(check_positions(positions))).astype(jnp.float32)
        return self.softmax_scale * rule

    def schedule(self, length: Any = None) -> FrequencySchedule:
        """The schedule at a length: frequencies and attention scale, nothing else of the spec.

        Args:
          length: a Python number or traced scalar for one schedule; an array [batch] for one per row, giving leading
            axes [batch, 1]; [batch, seq] for one per token (its segment's length), giving [batch, seq].

        Raises:
          ValueError: no length for a method that depends on it, or an array of more than two axes.
        """
        shape = jnp.shape(length) if isinstance(length, (jax.Array, np.ndarray)) else ()
        if len(shape) > 2:
            raise ValueError(f"`length` must be a number, [batch] or [batch, seq]; got shape {shape}.")
        if len(shape) == 1:
            length, shape = length[:, None], (*shape, 1)
        schedule = self.transform(geometric_schedule(self.rotary_dim, theta=self.theta), length=length)
        if schedule.stack == shape:
            return schedule
        # A method that does not read the length still answers in the shape that was asked for.
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*shape, *leaf.shape)), schedule)


def _check_head_dim(head_dim: Any, rotary_dim: int) -> None:
    if isinstance(head_dim, bool) or not isinstance(head_dim, (int, np.integer)):
        raise TypeError(f"`head_dim` must be an integer or None; got {head_dim!r}.")
    if head_dim < rotary_dim:
        raise ValueError(f"`rotary_dim` must be at most head_dim {head_dim}; got {rotary_dim}.")


def _check_pair_axes(pair_axes: Any, pairs: int) -> None:
    whole = all(isinstance(axis, int) and not isinstance(axis, bool) and axis >= 0 for axis in pair_axes)
    if len(pair_axes) != pairs or not whole:
        raise ValueError(
            f"`pair_axes` must name one position stream, 0 or above, for each of {pairs} pairs; got {pair_axes}."
        )


@dataclass(frozen=True)
class ModelRope:
    """A model's rotary settings: for every layer its group, for every group a spec, or None where nothing turns.

    Args:
      specs: group -> RopeSpec, or None for layers without positions (NoPE). Groups are called "all" when layers are
        alike, otherwise by the layer types of the model.
      layer_groups: the group of each layer, first layer first.
      sources: where each number came from, when it was read from a configuration.
      warnings: what was doubtful in it.

    Raises:
      ValueError: a layer's group without a spec, or a spec that no layer uses.

    Example:
      >>> rope = ModelRope({"all": RopeSpec(64)}, ("all",) * 4)
      >>> rope.schedules()["all"].pairs
      32
    """

    specs: Mapping[str, RopeSpec | None]
    layer_groups: tuple[str, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Copies: changing the caller's dict later changes nothing here.
        object.__setattr__(self, "specs", dict(self.specs))
        object.__setattr__(self, "sources", dict(self.sources))
        object.__setattr__(self, "layer_groups", tuple(self.layer_groups))
        object.__setattr__(self, "warnings", tuple(self.warnings))
        wrong = {group: spec for group, spec in self.specs.items() if not isinstance(spec, RopeSpec | None)}
        if wrong:
            raise TypeError(f"`specs` must hold RopeSpec values, or None for layers without rotation; got {wrong}.")
        unmatched = set(self.layer_groups) ^ set(self.specs)
        if unmatched:
            raise ValueError(
                f"`specs` must have one entry per layer group; got specs {sorted(self.specs)} for groups "
                f"{sorted(set(self.layer_groups))}. Give None for layers without rotation."
            )

    @property
    def needs_length(self) -> bool:
        """Whether any group's schedule depends on the length."""
        return any(spec is not None and spec.needs_length for spec in self.specs.values())

    def schedules(self, length: Any = None) -> dict[str, FrequencySchedule | None]:
        """Every group's schedule at a length (see `RopeSpec.schedule`); None stays None."""
        return {group: None if spec is None else spec.schedule(length) for group, spec in self.specs.items()}

    def query_scales(self, positions: Any) -> dict[str, Array | None]:
        """What every group's queries are multiplied by (see `RopeSpec.logit_scale`); None where nothing scales.

        Example:
          >>> rope = ModelRope({"all": RopeSpec(64)}, ("all",) * 4)
          >>> rope.query_scales(jnp.arange(3)[None])
          {'all': None}
        """
        return {group: None if spec is None else spec.logit_scale(positions) for group, spec in self.specs.items()}

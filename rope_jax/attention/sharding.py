"""How attention is divided over a device mesh, and which axes of the mesh at hand that means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
from jax.sharding import AxisType, PartitionSpec

from rope_jax.attention.token_order import Dealing, check_dealt

Form = Literal["all_gather", "ring"]


@dataclass(frozen=True)
class Sharding:
    """Which mesh axes divide rows, heads and sequence, and how queries meet the keys of other shards.

    The mesh is that of `jax.set_mesh`, with axes of type Auto. Axes of size 1, and named ones that it lacks, divide
    nothing; every longer axis must be named, or all of its devices would compute the same.

    Attributes:
      batch: axes that divide the rows.
      heads: the axis that divides query and key heads; None: none does.
      context: the axis that divides the sequence; None: none does.
      form: "all_gather": every shard holds the keys and values of whole rows while it attends; "ring": they go round
        in pieces, and no device ever holds more than its share.
      order: how the sequence was dealt out over `context` (see `dealt`): "contiguous", or "zigzag", where causal
        attention is the same work on every shard. Positions travel with the tokens.

    Raises:
      TypeError, ValueError: names that are no names or name one axis twice, an unknown form or order.

    Reference: arXiv 2310.01889 (ring), arXiv 2407.21783 section 3.3.2 (all-gather, zigzag).

    Example:
      >>> Sharding(batch=("data",), context="context", order="zigzag").form
      'all_gather'
    """

    batch: Sequence[str] = ("data", "fsdp")
    heads: str | None = "tensor"
    context: str | None = "context"
    form: Form = "all_gather"
    order: Dealing = "contiguous"

    def __post_init__(self) -> None:
        if isinstance(self.batch, str) or not isinstance(self.batch, Sequence):
            raise TypeError(f'`batch` must be a tuple of mesh axes; got {self.batch!r}. Write ("data",) for one.')
        # A list, as configuration files give it, would make the sharding unhashable.
        object.__setattr__(self, "batch", tuple(self.batch))
        for name in self.axes:
            if not isinstance(name, str):
                raise TypeError(f"`batch`, `heads` and `context` must name mesh axes; got {name!r}. Write their names.")
        if len(set(self.axes)) < len(self.axes):
            raise ValueError(
                f"`batch`, `heads` and `context` must be different axes; got {self.axes}. One divides one."
            )
        for name, allowed in (("form", get_args(Form)), ("order", get_args(Dealing))):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"`{name}` must be one of {', '.join(allowed)}; got {value!r}. Choose one of them.")

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that are named, those of the rows first."""
        return (*self.batch, *(name for name in (self.heads, self.context) if name is not None))


class Division(NamedTuple):
    """What a sharding comes to on one mesh.

    Attributes:
      batch: the axes that divide the rows; rows: into how many parts.
      heads, context: axis names, or None where nothing is divided; head_shards, shards: into how many parts.
      manual: the axes that the program is yet to be divided over.
    """

    batch: tuple[str, ...]
    rows: int
    heads: str | None
    head_shards: int
    context: str | None
    shards: int
    manual: tuple[str, ...]

    def spec(self, rows: int, *rest: str | None) -> PartitionSpec:
        """Of an array [batch or 1, ...]: one row that stands for all is on every device."""
        return PartitionSpec(self.batch if self.batch and rows > 1 else None, *rest)


def division(sharding: Sharding | None) -> Division | None:
    """What `sharding` divides on the mesh of `jax.set_mesh`; None: nothing, or there is no mesh.

    Raises:
      ValueError: a mesh axis that divides nothing, an explicit one, a sequence that is divided by hand already.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if sharding is None or mesh.empty:
        return None
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    sizes = dict(mesh.shape)
    _check_axes(sharding, kinds, sizes)
    free = {name: size for name, size in sizes.items() if size > 1 and kinds[name] == AxisType.Auto}
    if not free:
        return None
    batch = tuple(name for name in sharding.batch if name in free)
    rows = 1
    for name in batch:
        rows *= free[name]
    heads, context = (name if name in free else None for name in (sharding.heads, sharding.context))
    manual = tuple(name for name, kind in kinds.items() if kind == AxisType.Auto)
    return Division(batch, rows, heads, free.get(heads or "", 1), context, free.get(context or "", 1), manual)


def _check_axes(sharding: Sharding, kinds: dict[str, AxisType], sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if size == 1:
            continue
        if kinds[name] == AxisType.Explicit:
            raise ValueError(
                f"`sharding` must meet mesh axes of type Auto; got {name!r}, which is Explicit. "
                "Make the mesh with axis_types=(AxisType.Auto,) * axes."
            )
        if kinds[name] == AxisType.Manual and name == sharding.context:
            raise ValueError(
                f"`sharding` must divide the sequence itself; got the axis {name!r} that jax.shard_map divides "
                "already. Call it outside."
            )
        if kinds[name] == AxisType.Auto and name not in sharding.axes:
            raise ValueError(
                f"`sharding` must name every axis of the mesh {sizes}; got {sharding.axes}, without {name!r}, whose "
                f"{size} devices would all compute the same. Name it in batch, heads or context."
            )


def check_divisible(
    divided: Division, sharding: Sharding, *, batch: int, heads: tuple[int, int] | None = None, lengths: Sequence[int]
) -> None:
    """Rows, heads (of queries and of keys) and lengths that the mesh divides."""
    if batch % divided.rows:
        raise ValueError(
            f"`batch` must be divisible by the {divided.rows} devices of {divided.batch}; got {batch} rows. "
            "Pad the batch, or make the mesh smaller there."
        )
    for number, side in zip(heads or (), ("query heads", "key heads"), strict=False):
        if number % divided.head_shards:
            raise ValueError(
                f"`heads` must be divisible by the {divided.head_shards} devices of {divided.heads!r}; got {number} "
                f"{side}. Make that axis smaller, or pass Sharding(heads=None) on a mesh without it."
            )
    for length in lengths:
        check_dealt(length, divided.shards, sharding.order)


def divided_states(x: Any, sharding: Sharding | None) -> Any:
    """Hidden states [batch, seq, embed], kept on the devices of their tokens."""
    parts = division(sharding)
    if parts is None or sharding is None:
        return x
    check_divisible(parts, sharding, batch=x.shape[0], lengths=x.shape[1:2])
    return jax.lax.with_sharding_constraint(x, parts.spec(x.shape[0], parts.context, None))


def looked_up(x: Any, sharding: Sharding | None) -> Any:
    """Embeddings [batch, seq, embed] as a table divided along its width gives them, brought to `divided_states`.

    The compiler moves parts of the width to the devices of their tokens one mesh axis at a time; left to itself it
    makes the whole of them on every device first.
    """
    parts = division(sharding)
    if parts is not None and x.shape[-1] % parts.shards == 0:
        x = jax.lax.with_sharding_constraint(x, parts.spec(x.shape[0], None, parts.context))
    return divided_states(x, sharding)


def check_whole_context(sharding: Sharding | None) -> None:
    """Keys in a cache are not divided along the sequence."""
    parts = division(sharding)
    if parts is not None and parts.context is not None:
        raise ValueError(
            f"`sharding` must leave the sequence whole with a cache; got {parts.shards} devices along "
            f"{parts.context!r}. Decode on a mesh whose {parts.context!r} axis is 1: rows and heads may be divided."
        )

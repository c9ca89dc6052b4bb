"""Tensors of a checkpoint against the parameters of a decoder, settled from shapes before a number is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
from flax import nnx

from rope_jax import nn
from rope_jax.huggingface.weights.codecs import Codec, Shape
from rope_jax.huggingface.weights.families import Family
from rope_jax.huggingface.weights.names import HEAD, Spelling
from rope_jax.huggingface.weights.source import TensorSource
from rope_jax.huggingface.weights.wording import some


@dataclass(frozen=True)
class Placed:
    """Parameters of the decoder and the tensors that hold them: one for each layer, or one alone."""

    parameters: tuple[str, ...]
    shapes: tuple[Shape, ...]
    names: tuple[str, ...]
    stacked: bool
    codec: Codec

    @property
    def stored(self) -> Shape:
        """The shape of each tensor."""
        return self.codec.shape(self.shapes)

    @property
    def numbers(self) -> int:
        """How many numbers all of it is."""
        return len(self.names) * prod(self.stored)


@dataclass(frozen=True)
class Matched:
    """All parameters with their tensors, and the head that repeats a tied embedding, where the file has it."""

    placed: tuple[Placed, ...]
    tied_head: str | None


def abstract_decoder(config: nn.DecoderConfig) -> tuple[Any, Any]:
    """A decoder without numbers: its structure, and its state of shapes."""
    decoder = nnx.eval_shape(lambda: nn.Decoder(config, rngs=nnx.Rngs(0)))
    structure, state = nnx.split(decoder)
    return structure, state


def parameter_shapes(state: Any) -> dict[str, Shape]:
    """The shape of every parameter by its path, "blocks.mlp.up.kernel"."""
    leaves = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(state))[0]
    return {".".join(str(step.key) for step in path): leaf.shape for path, leaf in leaves}


def table(family: Family, shapes: Mapping[str, Shape], spelling: Spelling) -> tuple[Placed, ...]:
    """The family's names for the parameters of one decoder.

    Raises:
      ValueError: a parameter that the family has no tensor for.
    """
    placed, covered = [], set()
    for entry in family.entries:
        if not all(parameter in shapes for parameter in entry.parameters):
            continue
        covered |= set(entry.parameters)
        stacked = "{layer}" in entry.name
        whole = [shapes[parameter] for parameter in entry.parameters]
        layers = range(whole[0][0] if stacked else 1)
        placed.append(
            Placed(
                entry.parameters,
                tuple(shape[1:] if stacked else shape for shape in whole),
                tuple(_spelled(entry.name, spelling, layer) for layer in layers),
                stacked,
                entry.codec,
            )
        )
    bare = sorted(set(shapes) - covered)
    if bare:
        raise ValueError(
            f"`model` must have only parameters that {family.saved_as[0]} names; got {some(bare)}. "
            "Choose a decoder of that family."
        )
    return tuple(placed)


def match(source: TensorSource, family: Family, shapes: Mapping[str, Shape], *, tied: bool, label: str) -> Matched:
    """The tensors of a checkpoint for every parameter.

    Raises:
      ValueError: tensors without a parameter, parameters without a tensor, shapes that differ.
    """
    names = source.names()
    spelling = max(
        family.spellings, key=lambda s: sum(p in names for row in table(family, shapes, s) for p in row.names)
    )
    placed = table(family, shapes, spelling)
    wanted = {name: row.stored for row in placed for name in row.names}
    head = _spelled(HEAD, spelling, 0)
    tied_head = head if tied and head in names else None
    if tied_head is not None:
        wanted[tied_head] = shapes["embedding"]
    missing = sorted(set(wanted) - names)
    if missing:
        cure = "Set `tie_word_embeddings` if the embedding serves for both." if missing == [head] else "Fetch it whole."
        raise ValueError(f"`source` must hold every weight of the model; got {label} without {some(missing)}. {cure}")
    layers = max(len(row.names) for row in placed)
    unread = {_spelled(name, spelling, layer) for name in family.buffers for layer in range(layers)}
    extra = sorted(name for name in names - set(wanted) - unread if not name.startswith(family.other_parts))
    if extra:
        raise ValueError(
            f"`source` must hold the weights of {family.saved_as[0]} and nothing else; got {label} with {some(extra)}. "
            "Correct `model_type`, or remove them."
        )
    for name, shape in wanted.items():
        if tuple(source.shape(name)) != shape:
            raise ValueError(
                f"`source` must hold {name} in shape {shape}, as its configuration says; got {source.shape(name)} in "
                f"{label}. Correct the configuration."
            )
    return Matched(placed, tied_head)


def _spelled(name: str, spelling: Spelling, layer: int) -> str:
    return name.format(model=spelling.model, head=spelling.head, layer=layer)

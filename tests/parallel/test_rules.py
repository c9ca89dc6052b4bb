"""Every parameter of every form of the decoder has its axes, and so have the optimizer's moments of it."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from rope_jax import nn
from rope_jax.parallel import PARAMETERS, MeshShape, batch_sharding, make_mesh, param_axes, state_shardings

SMALL = {"vocab": 32, "embed": 16, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 24}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"bias": True, "norm": "layer", "tied": False},
    {"qk_norm": True, "sinks": True, "scalable_softmax": True},
    {"qk_norm": "full", "norm_placement": "both"},
    {"positional": "learned", "max_length": 8, "norm_placement": "post"},
    {"gated": False, "bias": ("mlp",), "parallel": True},
)


def params(**changes):
    config = nn.DecoderConfig(**{**SMALL, **changes})
    return nnx.split(nnx.eval_shape(lambda: nn.Decoder(config, rngs=nnx.Rngs(0))))[1]


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape(), devices=jax.devices()[:1])


def by_name(tree):
    return {
        ".".join(str(getattr(key, "key", getattr(key, "name", ""))) for key in path).removesuffix(".value"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def test_the_table_is_what_decoders_are_made_of(mesh):
    named = set()
    for changes in VARIANTS:
        for path, leaf in jax.tree_util.tree_leaves_with_path(params(**changes)):
            named.add(param_axes(path, leaf))
    assert named == {axes for name, axes in PARAMETERS.items() if name != "frequencies.*"}


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("accumulated", [False, True])
def test_moments_lie_beside_their_parameters(mesh, changes, accumulated):
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    optimizer = optax.MultiSteps(optimizer, 2) if accumulated else optimizer
    trained = params(**changes)
    opt = jax.eval_shape(optimizer.init, trained)
    placed = by_name(state_shardings({"params": trained, "opt": opt}, mesh))
    own = by_name(trained)
    for name, sharding in placed.items():
        # The longest, since "unembedding" ends as "embedding" does.
        parameter = max((known for known in own if name.endswith(f".{known}")), key=len, default=None)
        expected = P() if parameter is None else placed[f"params.{parameter}"].spec
        assert sharding.spec == expected, name
    assert {name: placed[f"params.{name}"].spec for name in ("embedding", "blocks.mlp.down.kernel")} == {
        "embedding": P("tensor", ("fsdp", "context")),
        "blocks.mlp.down.kernel": P(None, "tensor", ("fsdp", "context")),
    }


def test_frequencies_that_are_trained_are_whole_everywhere(mesh):
    state = {
        "frequencies": {"G": jax.ShapeDtypeStruct((4,), jnp.float32)},
        "count": jax.ShapeDtypeStruct((), jnp.int32),
    }
    assert [sharding.spec for sharding in jax.tree.leaves(state_shardings(state, mesh))] == [P(), P(None)]


def test_an_unknown_parameter_is_refused(mesh):
    state = {"blocks": {"attention": {"gate": jax.ShapeDtypeStruct((2, 4), jnp.float32)}}}
    with pytest.raises(ValueError, match=r"`blocks\.attention\.gate` must have a row in .*PARAMETERS; got none"):
        state_shardings(state, mesh)
    with pytest.raises(ValueError, match=r"`embedding` must have the axes \('vocab', 'embed'\).*got shape \(2, 3, 4\)"):
        state_shardings({"embedding": jax.ShapeDtypeStruct((2, 3, 4), jnp.float32)}, mesh)


def test_an_axis_that_the_mesh_does_not_divide():
    mesh = jax.sharding.AbstractMesh((1, 1, 3, 1), ("data", "fsdp", "tensor", "context"))
    with pytest.raises(ValueError, match=r"`mesh\.tensor` must divide the axis kv_heads of .*key\.kernel, 16; got 3\."):
        state_shardings({"blocks": params()["blocks"]}, mesh)
    mesh = jax.sharding.AbstractMesh((1, 8, 1, 4), ("data", "fsdp", "tensor", "context"))
    with pytest.raises(ValueError, match=r"`mesh\.fsdp \* mesh\.context` must divide the axis embed .*; got 32\."):
        state_shardings({"blocks": params()["blocks"]}, mesh)


def test_the_shards_of_a_row_hold_parts_of_the_parameters():
    mesh = jax.sharding.AbstractMesh((1, 2, 1, 4), ("data", "fsdp", "tensor", "context"))
    placed = by_name(state_shardings(params(), mesh))
    assert placed["blocks.mlp.up.kernel"].shard_shape((2, 16, 24)) == (2, 16 // (2 * 4), 24)
    assert placed["blocks.mlp_norm.scale"].shard_shape((2, 16)) == (2, 16)


def test_a_batch_is_divided_by_rows_and_tokens(mesh):
    assert batch_sharding(mesh).spec == P(("data", "fsdp"), "context")

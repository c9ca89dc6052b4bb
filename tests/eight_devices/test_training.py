"""Training on eight devices is training on one: losses, first weights, checkpoints taken from one mesh to another."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from rope_jax.experiment.checkpoint import Checkpoints
from rope_jax.experiment.settings import ModelConfig
from rope_jax.experiment.training.metrics import lines_of
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.run import train
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.settings import CheckpointConfig, ComputeConfig, HeldOutConfig, LogConfig, StageConfig
from rope_jax.experiment.training.state import abstract_state, init_state
from rope_jax.parallel import MeshShape, make_mesh
from tests.experiment.training.runs import run_config, trained

STEPS = 20
MODEL = ModelConfig(embed=16, layers=1, heads=4, kv_heads=4, head_dim=8, mlp=32)
MESHES: dict[str, tuple[MeshShape, dict[str, Any]]] = {
    "8x1 data x context": (MeshShape(data=8), {}),
    "2x4 data x context": (MeshShape(data=2, context=4), {"context_order": "zigzag"}),
    "4x2 data x context": (MeshShape(data=4, context=2), {"context_form": "ring"}),
    "2x4 fsdp x tensor": (MeshShape(fsdp=2, tensor=4), {}),
    "4x2 fsdp x tensor": (MeshShape(fsdp=4, tensor=2), {"accumulate": 2}),
    "8x1 fsdp x context": (MeshShape(fsdp=8), {}),
    "2x4 fsdp x context": (MeshShape(fsdp=2, context=4), {"context_form": "ring", "context_order": "zigzag"}),
    "4x2 fsdp x context": (MeshShape(fsdp=4, context=2), {"remat": "layers"}),
}
# The run that goes on on another mesh takes 20 steps as well, by "fsdp x tensor" and then by "data x context".
ALWAYS = ("2x4 fsdp x context",)


def config_of(folder, mesh, **compute):
    return dataclasses.replace(
        run_config(folder),
        stages=(StageConfig("base", 16, STEPS),),
        model=MODEL,
        mesh=mesh,
        compute=ComputeConfig(**compute),
        evaluate=HeldOutConfig(every=0, windows=4, tokens=3000, batch=4),
        checkpoint=CheckpointConfig(every=STEPS),
        log=LogConfig(every=1, tensorboard=False),
    )


def losses(config, devices=None):
    trained(config, devices)
    lines = lines_of(run_folder(config) / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, STEPS + 1))
    held_out = [line["loss"]["16"] for line in lines if line["kind"] == "evaluation"]
    return np.array([line["loss"] for line in lines if line["kind"] == "train"] + held_out)


def run_folder(config):
    return Path(config.output) / config.name


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the corpus, and the losses of one device."""
    folder = tmp_path_factory.mktemp("eight")
    config = dataclasses.replace(config_of(folder, MeshShape()), name="alone")
    return folder, losses(config, jax.devices()[:1])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in MESHES]
)
def test_twenty_losses_are_those_of_one_device(alone, name):
    folder, expected = alone
    mesh, compute = MESHES[name]
    config = dataclasses.replace(config_of(folder, mesh, **compute), name=name.replace(" ", "-"))
    assert np.abs(losses(config) - expected).max() < 1e-5
    assert expected[0] - expected[STEPS - 1] > 0.5


@pytest.mark.parametrize("mesh", [MeshShape(data=8), MeshShape(fsdp=2, tensor=4), MeshShape(fsdp=4, context=2)])
def test_first_weights_do_not_depend_on_the_mesh(tmp_path, mesh):
    config = config_of(tmp_path, mesh)
    one = init_state(open_run(config), make_mesh(MeshShape(), jax.devices()[:1]))
    many = init_state(open_run(config), make_mesh(mesh))
    for (path, left), right in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(many), strict=True):
        assert np.array_equal(left, right), path


def test_first_weights_are_born_divided(tmp_path):
    config = config_of(tmp_path, MeshShape(fsdp=2, tensor=4))
    state = init_state(open_run(config), make_mesh(config.mesh))
    mlp = state["params"]["blocks"]["mlp"]["up"]["kernel"][...]
    assert mlp.addressable_shards[0].data.shape == (1, 8, 8)
    moments = [leaf for leaf in jax.tree.leaves(state["opt"]) if leaf.shape == mlp.shape]
    assert moments and all(leaf.sharding == mlp.sharding for leaf in moments)


def test_a_checkpoint_goes_from_mesh_to_mesh(tmp_path):
    config = config_of(tmp_path, MeshShape(fsdp=2, tensor=4))
    state = init_state(open_run(config), make_mesh(config.mesh))
    with Checkpoints(tmp_path / "saved") as checkpoints:
        checkpoints.save(1, {"model": state["params"], "opt": state["opt"]}, {}, wait=True)
        for shape, devices in ((MeshShape(fsdp=4, tensor=2), 8), (MeshShape(data=8), 8), (MeshShape(), 1)):
            mesh = make_mesh(shape, jax.devices()[:devices])
            _, abstract = abstract_state(open_run(config), mesh)
            found = checkpoints.restore(1, {"model": abstract["params"], "opt": abstract["opt"]})
            for target, saved, restored in zip(
                jax.tree.leaves({"model": abstract["params"], "opt": abstract["opt"]}),
                jax.tree.leaves({"model": state["params"], "opt": state["opt"]}),
                jax.tree.leaves(found),
                strict=True,
            ):
                assert isinstance(restored.sharding, NamedSharding)
                assert restored.sharding.is_equivalent_to(target.sharding, target.ndim)
                assert restored.dtype == saved.dtype
                assert np.array_equal(restored, saved)
        with pytest.raises(ValueError, match=r"`model.*kernel.*` must be what step 1 .* holds, float32"):
            half = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "bfloat16", sharding=leaf.sharding), abstract["params"]
            )
            checkpoints.restore(1, {"model": half})


def test_a_run_goes_on_on_another_mesh(alone):
    folder, expected = alone
    config = dataclasses.replace(config_of(folder, MeshShape(fsdp=2, tensor=4)), name="moved")
    config = dataclasses.replace(config, checkpoint=CheckpointConfig(every=6))
    with Session(open_run(config)) as session:
        session.signal = None
        save = session.save

        def stop_after_six(state, point, *, wait=False):
            save(state, point, wait=wait)
            session.signal = 15

        session.save = stop_after_six  # type: ignore[method-assign]
        assert train(session).step == 7
    assert np.abs(losses(dataclasses.replace(config, mesh=MeshShape(data=4, context=2))) - expected).max() < 1e-5

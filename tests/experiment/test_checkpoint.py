"""Checkpoints: what is saved comes back bit for bit, where it is asked to, or not at all."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from orbax.checkpoint import v1 as ocp

from rope_jax.experiment.checkpoint import Checkpoints, check_space, restore_latest, save


def items(scale: float = 1.0) -> dict:
    """A model's state, its optimizer's and a random key, as training has them."""
    model = nnx.state(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    model = jax.tree.map(lambda leaf: leaf * jnp.float32(scale), model)
    return {"model": model, "optimizer": optax.adam(1e-3).init(model), "key": {"draw": jax.random.key(7)}}


def raw(tree: object) -> list[np.ndarray]:
    keys = jax.tree.map(
        lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf, tree
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(keys)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Steps 1 to 3; of step s every weight is s times the first one's."""
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    for step in (1, 2, 3):
        save(folder, step, items(step), {"losses": [1.5, step], "config_hash": "abc"})
    return folder


def test_the_latest_step_comes_back_bit_for_bit(saved):
    found = restore_latest(saved, items())
    assert found is not None
    step, restored, meta = found
    assert (step, meta) == (3, {"losses": [1.5, 3], "config_hash": "abc"})
    assert str(jax.tree.structure(restored)) == str(jax.tree.structure(items()))
    for left, right in zip(raw(restored), raw(items(3)), strict=True):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    draw = restored["key"]["draw"]
    assert jnp.array_equal(jax.random.normal(draw, (3,)), jax.random.normal(jax.random.key(7), (3,)))


def test_shapes_alone_are_enough_to_ask(saved):
    abstract = jax.eval_shape(items)
    found = restore_latest(saved, {"model": abstract["model"]})
    assert found is not None
    assert list(found[1]) == ["model"]
    assert np.array_equal(raw(found[1])[1], raw({"model": items(3)["model"]})[1])


def test_the_last_two_steps_are_kept(saved):
    assert sorted(int(path.name) for path in saved.iterdir() if path.name.isdigit()) == [2, 3]


def test_nothing_saved_is_none(tmp_path):
    assert restore_latest(tmp_path / "absent", items()) is None
    assert not (tmp_path / "absent").exists()
    assert restore_latest(tmp_path, items()) is None


@pytest.mark.parametrize("step", [2, 3])
def test_a_step_is_not_written_twice(saved, step):
    with pytest.raises(ValueError, match=rf"`step` must be above the last saved one, 3; got {step}"):
        save(saved, step, items(), {})


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (jax.ShapeDtypeStruct((2,), jnp.bfloat16), r"float32\[2\]; got bfloat16\[2\]"),
        (jax.ShapeDtypeStruct((4,), jnp.float32), r"float32\[2\]; got float32\[4\]"),
    ],
)
def test_another_dtype_or_shape_is_refused(tmp_path, leaf, words):
    save(tmp_path, 1, {"model": {"bias": jnp.zeros(2)}}, {})
    with pytest.raises(ValueError, match=rf"`model\['bias'\]` must be what step 1 of .* holds, {words}"):
        restore_latest(tmp_path, {"model": {"bias": leaf}})
    with pytest.raises(ValueError, match=r"`optimizer\['bias'\]` must be .* None; got"):
        restore_latest(tmp_path, {"optimizer": {"bias": leaf}})
    with pytest.raises(ValueError, match=r"`model\['bias'\]` must be .* got None"):
        restore_latest(tmp_path, {"model": {"scale": leaf}})


def test_a_half_written_step_is_passed_over(tmp_path):
    for step in (1, 2):
        save(tmp_path, step, {"model": {"bias": jnp.full(2, step)}}, {})
    (tmp_path / "3.orbax-checkpoint-tmp" / "model").mkdir(parents=True)
    found = restore_latest(tmp_path, {"model": {"bias": jnp.zeros(2, jnp.int32)}})
    assert found is not None
    assert (found[0], found[1]["model"]["bias"].tolist()) == (2, [2, 2])
    save(tmp_path, 3, {"model": {"bias": jnp.full(2, 3)}}, {})
    found = restore_latest(tmp_path, {"model": {"bias": jnp.zeros(2, jnp.int32)}})
    assert found is not None
    assert found[0] == 3


def interrupting(monkeypatch, moments):
    """Ctrl-C as often as `moments` says while the writer is at work, in the thread that writes."""
    write = ocp.training.Checkpointer.save_checkpointables

    def interrupted(self, *arguments, **keywords):
        for _ in range(moments):
            signal.raise_signal(signal.SIGINT)
        return write(self, *arguments, **keywords)

    monkeypatch.setattr(ocp.training.Checkpointer, "save_checkpointables", interrupted)


def test_ctrl_c_during_a_save_waits_until_the_step_is_complete(tmp_path, monkeypatch):
    interrupting(monkeypatch, 2)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1, {"model": {"bias": jnp.ones(2)}}, {"loss": 1.5})
    assert signal.getsignal(signal.SIGINT) is handler
    found = restore_latest(tmp_path, {"model": {"bias": jnp.zeros(2)}})
    assert found is not None
    assert (found[0], found[1]["model"]["bias"].tolist(), found[2]) == (1, [1.0, 1.0], {"loss": 1.5})


def test_a_save_in_another_thread_touches_no_handler(tmp_path):
    thread = threading.Thread(target=save, args=(tmp_path, 1, {"model": {"bias": jnp.ones(2)}}, {}))
    thread.start()
    thread.join()
    assert restore_latest(tmp_path, {"model": {"bias": jnp.zeros(2)}}) is not None


WRITER = """
import sys
import jax.numpy as jnp
from rope_jax.experiment.checkpoint import save

for step in range(1, 10_000):
    save(sys.argv[1], step, {"model": {"weight": jnp.full((256, 256), step)}}, {"step": step})
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.013, 0.029])
def test_a_killed_writer_leaves_a_complete_step(tmp_path, delay):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=Path(__file__).resolve().parents[2])
    try:
        deadline = time.monotonic() + 60
        while not any(name.isdigit() and int(name) >= 3 for name in os.listdir(tmp_path)):
            assert writer.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    found = restore_latest(tmp_path, {"model": {"weight": jnp.zeros((256, 256), jnp.int32)}})
    assert found is not None
    step, restored, meta = found
    assert meta == {"step": step}
    assert np.array_equal(restored["model"]["weight"], np.full((256, 256), step))
    save(tmp_path, step + 1, {"model": {"weight": jnp.full((256, 256), step + 1)}}, {"step": step + 1})


def test_steps_are_kept_by_number_and_by_multiple(tmp_path):
    with Checkpoints(tmp_path, keep=1, keep_every=4) as checkpoints:
        for step in range(1, 8):
            checkpoints.save(step, {"model": {"bias": jnp.full(2, step)}}, {})
        checkpoints.wait()
        assert checkpoints.latest == 7
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [4, 7]


def test_what_is_saved_in_the_background_is_what_was_given(tmp_path):
    spent = jax.jit(lambda x: x + 1, donate_argnums=0)
    bias = jnp.zeros(1000)
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"model": {"bias": bias}}, {"step": step})
            bias = spent(bias)
        checkpoints.wait()
        for step in (2, 3):
            restored = checkpoints.restore(step, {"model": {"bias": bias}})["model"]["bias"]
            assert np.array_equal(restored, np.full(1000, step - 1, np.float32))
            assert checkpoints.meta(step) == {"step": step}


def test_a_disk_without_room_is_refused_with_the_numbers(tmp_path, monkeypatch):
    state = {"model": jax.ShapeDtypeStruct((1024, 1024), jnp.float32), "count": jax.ShapeDtypeStruct((), jnp.int32)}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10 * 2**20))
    check_space(tmp_path / "new", state, 1)
    words = rf"room for 3 states of 4 MiB, 12 MiB; got 10 MiB free at {tmp_path}\. Make room"
    with pytest.raises(OSError, match=words):
        check_space(tmp_path / "new", state, 2)
    (tmp_path / "old").write_bytes(bytes(3 * 2**20))
    check_space(tmp_path, state, 2)


@pytest.mark.parametrize("wait", [True, False])
def test_a_disk_that_fills_up_is_named_with_the_step_that_is_whole(tmp_path, wait):
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": jnp.zeros(4)}, {}, wait=True)
    # Not drawn by a program, whose entry in the compile cache the limit could cut off.
    large = jnp.asarray(np.random.default_rng(0).standard_normal(4096, np.float32))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
        with pytest.raises(OSError, match=rf"`checkpoint` must be written to {tmp_path}; got .*goes on from step 1\."):
            checkpoints.save(2, {"x": large}, {}, wait=wait)
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    with Checkpoints(tmp_path) as again:
        assert again.latest == 1

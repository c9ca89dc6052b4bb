"""Where kernels run, what they leave to other backends, and which rows a NaN reaches."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from rope_jax.attention import BACKENDS, dispatch, kernels
from rope_jax.attention.base import Shard, separated
from rope_jax.attention.dispatch import SMALL, chosen
from tests.attention.cases import CASES, packed, positions, qkv
from tests.attention.test_backends import request

SMALL_REQUEST = replace(request(qkv() | positions()), order="contiguous")
SIDE = int((SMALL / 4) ** 0.5) + 1
LARGE = {
    name: replace(
        request(dict.fromkeys("qkv", jnp.zeros((1, SIDE, 4, 8), dtype)) | positions(SIDE)),
        order="contiguous",
    )
    for name, dtype in (("splash", jnp.float32), ("cudnn", jnp.bfloat16))
}


def traced(function, known=SMALL_REQUEST):
    """What `function` finds of a request whose arrays the compiled program gets."""
    found = []
    jax.eval_shape(lambda q: found.append(function(replace(known, q=q))), known.q)
    return found[0]


def on(monkeypatch, platform, devices=1):
    monkeypatch.setattr(kernels, "platform", lambda request: platform)
    monkeypatch.setattr(kernels, "devices", lambda request: devices)
    monkeypatch.setattr(kernels, "compute_capability", lambda: (9, 0))


@pytest.mark.parametrize(("platform", "kernel"), [("tpu", "splash"), ("gpu", "cudnn")])
def test_auto_takes_the_kernel_of_the_platform_where_it_is_sure_to_serve(platform, kernel, monkeypatch):
    on(monkeypatch, platform)
    assert chosen(LARGE[kernel], "auto") is BACKENDS[kernel]
    assert chosen(SMALL_REQUEST, "auto") is BACKENDS["xla"]
    assert chosen(replace(LARGE[kernel], order="any"), "auto") is BACKENDS["chunked"]
    for number in (None, 4):
        on(monkeypatch, platform, number)
        assert chosen(LARGE[kernel], "auto") is BACKENDS["chunked"]
    on(monkeypatch, "cpu")
    assert chosen(LARGE[kernel], "auto") is BACKENDS["chunked"]


@pytest.mark.parametrize(("platform", "kernel", "found"), [("tpu", "splash", "splash"), ("gpu", "cudnn", "chunked")])
def test_auto_takes_the_kernel_that_knows_of_shards(platform, kernel, found, monkeypatch):
    """cuDNN counts queries and keys from the same token, so a shard's queries and the keys of all are beyond it."""
    on(monkeypatch, platform)
    known, keys = LARGE[kernel], SIDE // 4 * 4
    assert chosen(known, "auto") is BACKENDS[kernel]
    own = {name: getattr(known, name)[:, : keys // 4] for name in ("q", "q_positions")}
    theirs = {name: getattr(known, name)[:, :keys] for name in ("k", "v", "kv_positions")}
    monkeypatch.setattr(dispatch, "SMALL", SMALL // 8)
    part = replace(known, **own, **theirs)
    assert chosen(part, "auto") is BACKENDS["chunked"]
    assert chosen(replace(part, shard=Shard("context", 4, "zigzag")), "auto") is BACKENDS[found]


def test_a_named_kernel_serves_where_only_the_compiler_knows_how_many_devices_there_are(monkeypatch):
    on(monkeypatch, "tpu", None)
    assert chosen(LARGE["splash"], "splash") is BACKENDS["splash"]
    on(monkeypatch, "tpu", 4)
    with pytest.raises(
        ValueError, match=r"not divided among devices by the compiler; call attend inside jax.shard_map"
    ):
        chosen(LARGE["splash"], "splash")


def test_the_platform_is_that_of_the_array_the_mesh_or_the_default_device():
    assert kernels.platform(SMALL_REQUEST) == "cpu"
    assert traced(kernels.platform) == jax.default_backend()
    with jax.default_device("cpu"):
        assert traced(kernels.platform) == "cpu"
    tpu = AbstractMesh((1,), ("data",), abstract_device=AbstractDevice("TPU v5 lite", 1, "tpu"))
    with jax.sharding.use_abstract_mesh(tpu):
        assert traced(kernels.platform) == "tpu"


def test_devices_are_those_that_the_compiler_divides_the_call_over():
    assert kernels.devices(SMALL_REQUEST) == 1
    kinds = (AxisType.Auto, AxisType.Manual)
    for kind, number in ((kinds, 2), (kinds[::-1], 3), ((AxisType.Manual,) * 2, 1), ((AxisType.Explicit,) * 2, 6)):
        with jax.sharding.use_abstract_mesh(AbstractMesh((2, 3), ("data", "model"), kind)):
            assert traced(kernels.devices) == number


@pytest.mark.parametrize(("number", "found"), [(1, 1), (8, None)])
def test_without_a_mesh_only_a_lone_device_is_sure(number, found, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: number)
    assert traced(kernels.devices) == found


@pytest.mark.parametrize(
    ("check", "message"), [(False, None), (True, "inside jax.shard_map a kernel needs check_vma=False")]
)
def test_inside_shard_map_kernels_need_the_check_switched_off(check, message):
    found = []

    def look(q):
        found.append(kernels.beyond_program(replace(SMALL_REQUEST, q=q)))
        return q

    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    jax.eval_shape(
        jax.shard_map(look, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=check), SMALL_REQUEST.q
    )
    assert found[0] == message


@pytest.mark.parametrize(("version", "found"), [("9.0", (9, 0)), ("12.0", (12, 0)), ("gfx90a", None)])
def test_compute_capability_is_that_of_an_nvidia_gpu(version, found, monkeypatch):
    assert kernels.compute_capability() is None
    gpu = SimpleNamespace(platform="gpu", compute_capability=version)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert kernels.compute_capability() == found


@pytest.mark.parametrize("window", [None, 6])
def test_rows_that_a_nan_reaches_are_those_that_see_it(window):
    """As the whole visibility matrix says: packed documents, padding, several such tokens, unusable queries."""
    known = replace(request(CASES["packed documents"]), window=window)
    rng, segments = np.random.default_rng(3), jnp.asarray(packed()["q_segments"])
    for tokens in (1, 4):
        at = rng.integers(0, 37, (3, tokens))
        spoiled = replace(
            known,
            q=known.q.at[0, at[0]].set(jnp.inf),
            k=known.k.at[0, at[1], 0, 3].set(jnp.nan),
            v=known.v.at[1, at[2]].set(jnp.nan),
        )
        found = kernels.spoiled_rows(spoiled, segments, segments)
        np.testing.assert_array_equal(found, separated(spoiled)[4])
        assert np.any(found)
    assert not np.any(kernels.spoiled_rows(known, segments, segments))

import jax
import pytest

from rope_jax.parallel import AXES, MeshShape, make_mesh


def test_one_device_is_a_mesh_of_ones():
    mesh = make_mesh(MeshShape(), devices=jax.devices()[:1])
    assert mesh.axis_names == AXES
    assert set(mesh.shape.values()) == {1}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@pytest.mark.parametrize(
    ("shape", "devices", "resolved"),
    [
        (MeshShape(data=-1), 8, (8, 1, 1, 1)),
        (MeshShape(data=-1, context=4), 8, (2, 1, 1, 4)),
        (MeshShape(fsdp=2, tensor=-1, context=2), 8, (1, 2, 2, 2)),
        (MeshShape(data=2, fsdp=4), 8, (2, 4, 1, 1)),
        (MeshShape(tensor=-1), 1, (1, 1, 1, 1)),
    ],
)
def test_what_is_left_of_the_devices(shape, devices, resolved):
    assert tuple(size for _, size in shape.resolved(devices).items()) == resolved


@pytest.mark.parametrize(
    ("shape", "devices", "got"),
    [
        (MeshShape(data=3), 8, "data 3 = 3 ways"),
        (MeshShape(data=-1, tensor=3), 8, "data -1 x tensor 3 = 3 ways"),
        (MeshShape(), 8, "one device = 1 ways"),
        (MeshShape(data=4, context=4), 8, "data 4 x context 4 = 16 ways"),
    ],
)
def test_a_mesh_that_does_not_divide_the_devices(shape, devices, got):
    with pytest.raises(ValueError, match=rf"`mesh` must multiply to the {devices} devices there are; got {got}\. "):
        shape.resolved(devices)


def test_sizes_that_are_none(unchecked):
    with pytest.raises(ValueError, match=r"`tensor` must be at least 1, or -1 .*; got 0\."):
        MeshShape(tensor=0)
    with pytest.raises(ValueError, match=r"at most one axis open with -1; got data and context\."):
        MeshShape(data=-1, context=-1)
    with pytest.raises(TypeError, match=r"`fsdp` must be an integer; got 2\.0\."):
        MeshShape(fsdp=2.0)  # type: ignore[arg-type]

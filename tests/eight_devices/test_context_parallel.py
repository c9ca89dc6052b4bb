"""`attend_sharded` on eight devices is `attend` on one: results and gradients, whatever the mesh, form and order."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.attention import Sharding, attend, attend_sharded, dealt
from rope_jax.attention.sharding import Form
from rope_jax.attention.token_order import Dealing
from tests.eight_devices.meshes import dealt_out, mesh, put_back

ROWS, SEQ, HEADS, KV_HEADS, HEAD_DIM = 8, 16, 4, 2, 8
FORMS: tuple[Form, ...] = ("all_gather", "ring")
ORDERS: tuple[Dealing, ...] = ("contiguous", "zigzag")
ALWAYS = (("2 x 4", "all_gather"), ("2 x 4", "ring"), ("fsdp x context", "all_gather"))
RAN = [
    pytest.param(name, form, marks=() if (name, form) in ALWAYS else pytest.mark.slow)
    for name in ("8 x 1", "2 x 4", "4 x 2", "fsdp x context", "tensor x context")
    for form in FORMS
]
SPECS = {
    "plain": rj.RopeSpec(HEAD_DIM, theta=100.0),
    "YaRN": rj.RopeSpec(HEAD_DIM, theta=100.0, transform=rj.scaling.YaRN(factor=4.0, original_length=4)),
    "dynamic NTK": rj.RopeSpec(HEAD_DIM, theta=100.0, transform=rj.scaling.DynamicNTK(factor=2.0, original_length=4)),
}


def whole():
    """One document a row."""
    return np.tile(np.arange(SEQ, dtype=np.int32), (ROWS, 1)), np.ones((ROWS, SEQ), np.int32)


def packed():
    """Documents of several lengths, other ones in every second row."""
    positions, segments = np.empty((ROWS, SEQ), np.int32), np.empty((ROWS, SEQ), np.int32)
    for row in range(ROWS):
        parts = [3, 9, 4] if row % 2 else [7, 5, 2, 2]
        segments[row] = np.repeat(np.arange(1, len(parts) + 1), parts)
        positions[row] = np.concatenate([np.arange(part) for part in parts])
    return positions, segments


def padded():
    """Padding on the left, more in every row; row 5 has no token at all in the first of four shards."""
    first = np.arange(ROWS)[:, None]
    positions = np.arange(SEQ)[None] - first
    return np.maximum(positions, -1).astype(np.int32), (positions >= 0).astype(np.int32)


CASES = {
    "plain": ("plain", whole(), SEQ),
    "YaRN, sliding window": ("YaRN", whole(), 5),
    "dynamic NTK by segment": ("dynamic NTK", packed(), SEQ),
    "left padding, sliding window": ("plain", padded(), 6),
    "packed, YaRN, sliding window": ("YaRN", packed(), 3),
}


@functools.cache
def case(name):
    """The tokens of a case, their tables, and what is drawn for all."""
    spec, (positions, segments), window = CASES[name]
    lengths = rj.lengths(positions, segments)
    schedule = SPECS[spec].schedule(length=lengths if SPECS[spec].needs_length else None)
    table = rj.rotary_table(schedule, positions)
    rng = np.random.default_rng(0)
    q, out = rng.standard_normal((2, ROWS, SEQ, HEADS, HEAD_DIM)).astype(np.float32)
    k, v = rng.standard_normal((2, ROWS, SEQ, KV_HEADS, HEAD_DIM)).astype(np.float32)
    sinks, slopes, scale = rng.standard_normal((3, HEADS)).astype(np.float32)
    floats = {"q": q, "k": k, "v": v, "sinks": sinks, "slopes": np.abs(slopes) / 8, "scale": np.abs(scale)}
    tokens = {"positions": positions, "segments": segments, "cos": np.asarray(table.cos), "sin": np.asarray(table.sin)}
    return floats, tokens, np.int32(window), out


def result_and_gradients(attention, floats, tokens, window, cotangent):
    table = rj.RotaryTable(tokens["cos"], tokens["sin"])

    def run(floats):
        turned = {name: rj.rotate(floats[name], table) for name in "qk"}
        sides = {f"{side}_{name}": tokens[name] for side in ("q", "kv") for name in ("positions", "segments")}
        return attention(**floats | turned, **sides, window=window, softcap=2.0)

    out, back = jax.vjp(run, floats)
    return out, back(cotangent)[0]


@functools.cache
def on_one(name):
    return jax.jit(functools.partial(result_and_gradients, functools.partial(attend, backend="reference")))(*case(name))


def close(found, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, wanted)


@pytest.mark.parametrize(("name", "form"), RAN)
def test_results_and_gradients_are_those_of_one_device(name, form):
    """Everything at once: grouped heads, softcap, sinks, slopes, a scale per head, a traced window; by cases."""
    for order in ORDERS:
        sharded = functools.partial(attend_sharded, sharding=Sharding(form=form, order=order), backend="chunked")
        with mesh(name):
            run = jax.jit(functools.partial(result_and_gradients, sharded))
            for tokens in CASES:
                found = run(*dealt_out(case(tokens), SEQ, name, order))
                close(put_back(found, SEQ, name, order), on_one(tokens))


def test_positions_that_stay_behind_are_seen():
    """Shards that count from 0, and tokens that are dealt out without their positions, give something else."""
    name = "2 x 4"
    order: Dealing = "zigzag"
    floats, tokens, window, cotangent = dealt_out(case("plain"), SEQ, name, order)
    want = on_one("plain")[0]
    local = np.tile(np.arange(SEQ // 4, dtype=np.int32), (ROWS, 4))
    sharded = functools.partial(attend_sharded, sharding=Sharding(order=order), backend="chunked")
    with mesh(name):
        run = jax.jit(functools.partial(result_and_gradients, sharded))
        for positions, right in ((tokens["positions"], True), (whole()[0], False), (local, False)):
            table = rj.rotary_table(SPECS["plain"].schedule(), positions)
            own = tokens | {"positions": positions, "cos": np.asarray(table.cos), "sin": np.asarray(table.sin)}
            found = run(floats, own, window, cotangent)[0]
            apart = np.abs(put_back(found, SEQ, name, order) - want).max()
            assert apart < 1e-5 if right else apart > 0.1


def test_balanced_shards_of_packed_documents_keep_the_positions_of_their_tokens():
    """Documents of 4 and 4 tokens on two shards, each dealt out by itself: shard 0 holds tokens 0, 3, 4 and 7."""
    each = dealt(4, 2, "zigzag").reshape(2, 2)
    tokens = np.concatenate([each, each + 4], axis=1)
    assert tokens[0].tolist() == [0, 3, 4, 7]
    positions, segments = np.arange(8) % 4, np.arange(8) // 4 + 1
    assert positions[tokens[0]].tolist() == [0, 3, 0, 3]
    rng, index = np.random.default_rng(1), tokens.reshape(-1)
    x = rng.standard_normal((4, 8, 2, 8)).astype(np.float32)

    def run(attention, x, positions, segments):
        sides = {"q_positions": positions, "kv_positions": positions, "q_segments": segments, "kv_segments": segments}
        return attention(x, x, x, **sides, backend="reference")

    want = jax.jit(functools.partial(run, attend))(x, positions[None], segments[None])
    with mesh("4 x 2"):
        sharded = jax.jit(functools.partial(run, functools.partial(attend_sharded, sharding=Sharding())))
        found = sharded(x[:, index], positions[None, index], segments[None, index])
    np.testing.assert_allclose(np.asarray(found)[:, np.argsort(index)], want, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_score_maps_are_divided_as_well(form):
    """Regions turn queries and keys their own ways, and their keys travel with the tokens."""
    order: Dealing = "zigzag"
    schedule, name = rj.geometric_schedule(8, theta=100.0), "2 x 4"
    x = np.random.default_rng(2).standard_normal((2, SEQ, 2, 8)).astype(np.float32)
    sinks = np.asarray([0.5, -0.5], np.float32)

    def run(attention, x, sinks, positions):
        near, far = rj.rotary_table(schedule, positions), rj.rotary_table(schedule, jnp.minimum(positions, 4))
        regions = (
            rj.attention.Region(q_table=near, kv_table=near, high=4),
            rj.attention.Region(q_table=far, kv_table=near, low=4),
        )
        return attention(x, x, x, q_positions=positions, kv_positions=positions, regions=regions, sinks=sinks)

    positions = np.arange(SEQ, dtype=np.int32)[None]
    want = jax.jit(functools.partial(run, attend))(x, sinks, positions)
    with mesh(name):
        sharded = functools.partial(attend_sharded, sharding=Sharding(form=form, order=order), backend="chunked")
        found = jax.jit(functools.partial(run, sharded))(*dealt_out((x, sinks, positions), SEQ, name, order))
    np.testing.assert_allclose(put_back(found, SEQ, name, order), want, atol=1e-5)


def memory(form, gradients):
    """Bytes of one device besides arguments and results, of a program that is compiled and not run."""
    length = 2**14
    x = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)
    positions = jnp.arange(length)[None]

    def run(q, k, v):
        tokens: dict[str, Any] = {"q_positions": positions, "kv_positions": positions}
        out = attend_sharded(q, k, v, **tokens, sharding=Sharding(form=form), backend="chunked")
        return jnp.sum(jnp.square(out)) if gradients else out

    with mesh("1 x 8"):
        place = jax.sharding.PartitionSpec(None, "context")
        function = jax.grad(run, (0, 1, 2)) if gradients else run
        compiled = jax.jit(function, in_shardings=place, out_shardings=place).lower(x, x, x).compile()
    used = compiled.memory_analysis()
    assert used is not None
    return used.temp_size_in_bytes


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "with gradients"])
def test_the_ring_holds_a_quarter_at_most(gradients, capsys):
    gathered, ring = memory("all_gather", gradients), memory("ring", gradients)
    with capsys.disabled():
        what = "with gradients" if gradients else "forward"
        print(f"\nMiB a device, 8 shards, {what}: all_gather {gathered / 2**20:.2f}, ring {ring / 2**20:.2f}")
    assert ring <= gathered / 4


def refused(message, name="2 x 4", sharding=None, **changes):
    q, k = changes.pop("q", (ROWS, SEQ, HEADS)), changes.pop("k", (ROWS, SEQ, KV_HEADS))
    q, k = (jnp.ones((*shape, HEAD_DIM)) for shape in (q, k))
    tokens = {"q_positions": jnp.arange(q.shape[1])[None], "kv_positions": jnp.arange(k.shape[1])[None]}
    with mesh(name), pytest.raises(ValueError, match=re.escape(message)):
        attend_sharded(q, k, k, **tokens | changes, sharding=sharding or Sharding())


def test_what_the_mesh_does_not_divide_is_refused():
    refused("`batch` must be divisible by the 2 devices of ('data',); got 3", q=(3, 16, 4), k=(3, 16, 2))
    refused("`length` must be divisible by 4 for 4 shards in contiguous order; got 18", q=(2, 18, 4), k=(2, 18, 2))
    zigzag = Sharding(order="zigzag")
    refused("`length` must be divisible by 8 for 4 shards in zigzag order", sharding=zigzag, q=(2, 12, 4), k=(2, 12, 4))
    few = {"name": "tensor x context", "q": (2, 16, 3), "k": (2, 16, 1)}
    refused("`heads` must be divisible by the 2 devices of 'tensor'; got 3 query heads", **few)
    refused("got 1 key heads", **few | {"q": (2, 16, 2)})


def test_axes_that_are_not_there_and_unnamed_ones_are_refused():
    """A misspelt axis would leave the one that was meant to compute everything on all of its devices."""
    refused("`sharding` must name every axis of the mesh", sharding=Sharding(context="sequence"))
    refused("without 'context', whose 4 devices would all compute the same", sharding=Sharding(context=None))
    refused("without 'data'", sharding=Sharding(batch=("rows",)))


def test_a_ring_of_another_backend_is_refused():
    refused('`backend` must be "auto" or "chunked" for form="ring"', sharding=Sharding(form="ring"), backend="xla")


def test_an_order_that_cannot_hold_is_refused_as_on_one_device():
    """What `order` promises holds of the whole row, before its tokens are dealt out."""
    index = dealt(SEQ, 4, "zigzag")[None]
    right: dict[str, Any] = {"q_positions": index, "kv_positions": index, "order": "contiguous"}
    x = jnp.ones((2, SEQ, 2, 8))
    with mesh("2 x 4"):
        jax.eval_shape(lambda x: attend_sharded(x, x, x, **right, sharding=Sharding(order="zigzag")), x)
    refused("`order` must be true of the positions", **right)

"""Caches and inputs that the block and the decoder refuse at the door, in one line that names the argument."""

import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from tests.nn.models import PLAIN, POSITIONS, SEQ, SMALL, TOKEN_IDS, decoder, drawn
from tests.unchecked import unchecked

X = jnp.ones((2, SEQ, 12))
ONE = jnp.ones((1, 1, 1, 4))


def block():
    return drawn(lambda: nn.RotaryAttention(nn.AttentionConfig(embed=12, heads=2, head_dim=8), rngs=nnx.Rngs(0)))


def empty(**changes):
    return nn.KVCache.empty(**({"batch": 1, "capacity": 4, "kv_heads": 1, "head_dim": 4} | changes))


def refused(error, message):
    """That error, with a message of one line that has these words in it."""
    return pytest.raises(error, match=rf"\A[^\n]*{re.escape(message)}[^\n]*\Z")


FILLED = {
    "tokens": lambda: empty().append(ONE, ONE, jnp.zeros((1, 1), jnp.int32)),
    "a schedule": lambda: empty().rerotate(rj.geometric_schedule(4)),
    "layers": lambda: empty().for_layers(("L",)),
}


@pytest.mark.parametrize("name", FILLED)
def test_layers_are_made_from_a_new_cache_only(name):
    cache = FILLED[name]()
    with refused(ValueError, "`for_layers` must be called on a new cache; got"):
        cache.for_layers(("L", "G"))


@pytest.mark.parametrize(
    ("layer_groups", "error"),
    [
        ((), ValueError),
        (("",), ValueError),
        (["L"], TypeError),
        ("LG", TypeError),
        ((1,), TypeError),
        (None, TypeError),
    ],
)
def test_layer_groups_are_a_tuple_of_names(layer_groups, error):
    with unchecked(), refused(error, f"got {layer_groups!r}. Pass `layer_groups` of the decoder's config."):
        empty().for_layers(layer_groups)


@pytest.mark.parametrize("dtype", ["int8", jnp.bool_, "foo", None, complex, "float64", jnp.float8_e4m3fn, 7])
def test_keys_are_stored_in_a_floating_dtype(dtype):
    for make in (lambda: empty(dtype=dtype), lambda: decoder().empty_cache(1, 4, dtype=dtype or "int8")):
        with unchecked(), refused(TypeError, "`dtype` must be one of float32, bfloat16, float16; got"):
            make()


@pytest.mark.parametrize("dtype", ["float32", jnp.bfloat16, jnp.dtype("float16")])
def test_keys_are_stored_in_the_dtype_asked_for(dtype):
    assert empty(dtype=dtype).v.dtype == jnp.dtype(dtype)


def test_float64_keys_need_x64():
    with jax.enable_x64(True):
        assert empty(dtype="float64").k.dtype == jnp.float64


def test_a_schedule_that_turned_nothing_is_not_recorded():
    cache = nn.KVCache.empty(2, SEQ, 2, 8)
    for given in (cache, nn.KVCache.empty(2, SEQ, 2, 8, keys="unrotated"), None):
        with refused(ValueError, "`table` must be given with `schedule`; got None"):
            block()(X, None, positions=POSITIONS, cache=given, schedule=PLAIN)
    # A dict in which no group turns states no schedule.
    with refused(ValueError, "`schedule` and no `kv_table` must come with a cache of rotated keys; got no schedule"):
        block()(X, rj.rotary_table(PLAIN, POSITIONS), positions=POSITIONS, cache=cache, schedule={"all": None})


@pytest.mark.parametrize("shape", [(SEQ, 12), (2, SEQ, 11), (2, 0, 12), (0, SEQ, 12), (1, 2, SEQ, 12)])
def test_tokens_of_another_shape_are_refused_by_the_block(shape):
    with unchecked(), refused(ValueError, f"`x` must be [batch, seq, embed = 12], no axis empty; got shape {shape}."):
        block()(jnp.ones(shape), None, positions=POSITIONS)


def test_token_ids_are_no_input_of_the_block():
    with unchecked(), refused(TypeError, "`x` must be a floating array; got int32."):
        block()(TOKEN_IDS, None, positions=POSITIONS)
    with unchecked(), refused(TypeError, "`x` must be a floating array; got list."):
        block()([[[0.0]]], None, positions=POSITIONS)


@pytest.mark.parametrize("shape", [(0, SEQ), (2, 0), (SEQ,)])
def test_a_batch_without_tokens_is_refused(shape):
    with unchecked(), refused(ValueError, f"`token_ids` must be [batch, seq], neither empty; got shape {shape}."):
        decoder()(jnp.zeros(shape, jnp.int32), PLAIN, positions=POSITIONS)


def test_a_cache_of_another_batch_is_refused():
    message = "`cache` must have the batch of the tokens, 2; got 3. Make it for that batch."
    # By the shapes alone, with nothing computed: under jit as well, where jax adds lines of its own.
    with pytest.raises(ValueError, match=re.escape(message)):
        jax.eval_shape(
            lambda model, cache: model(TOKEN_IDS, PLAIN, positions=POSITIONS, cache=cache),
            decoder(),
            decoder().empty_cache(3, SEQ),
        )
    with refused(ValueError, message):
        block()(X, None, positions=POSITIONS, cache=nn.KVCache.empty(3, SEQ, 2, 8))


@pytest.mark.parametrize("cache", [5, {}, (X, X)])
def test_what_is_no_cache_is_refused(cache):
    message = f"`cache` must be a KVCache or None; got {type(cache).__name__}."
    with unchecked(), refused(TypeError, message):
        decoder()(TOKEN_IDS, PLAIN, positions=POSITIONS, cache=cache)
    with unchecked(), refused(TypeError, message):
        block()(X, None, positions=POSITIONS, cache=cache)


def test_a_cache_of_layers_is_none_of_a_block():
    with refused(ValueError, "`cache` must be made for the layer groups, kv heads and head_dim (None, 2, 8); got"):
        block()(X, None, positions=POSITIONS, cache=decoder().empty_cache(2, SEQ))
    assert decoder().empty_cache(2, SEQ).layer_groups == SMALL.layer_groups


@pytest.mark.parametrize(("capacity", "error"), [("8", TypeError), (0, ValueError), (True, TypeError)])
def test_capacity_is_a_count(capacity, error):
    with unchecked(), refused(error, f"got {capacity!r}. Write a whole number from 1 on."):
        decoder().empty_cache(2, capacity)

"""Rules that scale logits by position, against float64 and published numbers, to the last position there is."""

import math
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface import Llama4QueryScale, Mistral3QueryScale
from tests.unchecked import unchecked

MINISTRAL = Mistral3QueryScale(beta=0.1, original_length=16384)
QWEN = rj.LogN(original_length=2048)
RULES: MappingProxyType[str, tuple[Any, Any]] = MappingProxyType(
    {
        "log-n": (QWEN, lambda p: max(1.0, math.log(p + 1) / math.log(2048))),
        "Llama 4": (Llama4QueryScale(), lambda p: 1 + 0.1 * math.log(1 + (p + 1) // 8192)),
        "Llama 4, other numbers": (
            Llama4QueryScale(scale=0.5, floor=7),
            lambda p: 1 + 0.5 * math.log(1 + (p + 1) // 7),
        ),
        "Ministral": (MINISTRAL, lambda p: 1 + 0.1 * math.log(1 + p // 16384)),
    }
)
POSITIONS = (0, 1, 5, 6, 7, 2046, 2047, 2048, 8190, 8191, 8192, 16383, 16384, 131071, 10_000_000, 2**31 - 2, 2**31 - 1)


@pytest.mark.parametrize("name", RULES)
def test_rules_are_float64_rounded_once(name):
    rule, formula = RULES[name]
    expected = np.array([formula(p) for p in POSITIONS], np.float32)
    got = rule(np.array(POSITIONS))
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, expected)
    traced = jax.jit(rule)(jnp.asarray(POSITIONS, jnp.int32))
    assert traced.dtype == jnp.float32
    np.testing.assert_allclose(traced, expected, rtol=6e-8)


def test_rules_give_the_published_numbers():
    np.testing.assert_allclose(Llama4QueryScale()([0, 8191, 100_000]), [1, 1.0693147, 1.2564949], rtol=1e-7)
    np.testing.assert_allclose(MINISTRAL([16383, 16384, 100_000]), [1, 1.0693147, 1.1945910], rtol=1e-7)
    assert QWEN([2047, 2048 * 2048 - 1]).tolist() == [1.0, 2.0] and QWEN(2048).item() > 1


@pytest.mark.parametrize("name", RULES)
def test_padding_is_not_scaled(name):
    padding = jnp.asarray([[-1, -2, -8192, -(2**31 - 1)]], jnp.int32)
    np.testing.assert_array_equal(RULES[name][0](padding), 1)
    np.testing.assert_array_equal(jax.jit(RULES[name][0])(padding), 1)


def test_rules_are_values():
    assert rj.LogN(original_length=2048) == QWEN and hash(rj.LogN(original_length=2048)) == hash(QWEN)
    assert hash(rj.RopeSpec(8, query_scale=MINISTRAL)) == hash(rj.RopeSpec(8, query_scale=MINISTRAL))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: rj.LogN(original_length=1), ValueError, "`original_length` must be at least 2; got 1"),
        (lambda: rj.LogN(original_length=True), TypeError, "`original_length` must be a number; got True"),
        (lambda: Llama4QueryScale(floor=0), ValueError, "`floor` must be at least 1; got 0"),
        (lambda: Llama4QueryScale(scale=-0.1), ValueError, "`scale` must be at least 0; got -0.1"),
        (lambda: Mistral3QueryScale(beta=float("nan"), original_length=8), ValueError, "`beta` must be at least 0"),
        (lambda: Mistral3QueryScale(beta=0.1, original_length=0), ValueError, "`original_length` must be at least 1"),
        (lambda: QWEN([0.5]), TypeError, "`positions` must be integers"),
    ],
)
def test_numbers_that_make_no_rule_are_refused(make, error, message):
    with unchecked(), pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_queries_grow_by_both_scales_and_so_do_gradients(dtype):
    spec = rj.RopeSpec(4, head_dim=8, softmax_scale=1.5, query_scale=QWEN)
    q, positions = jnp.ones((1, 3, 2, 8), dtype), jnp.asarray([[-1, 131071, 10_000_000]], jnp.int32)
    factor = 1.5 * np.array([1, math.log(131072) / math.log(2048), math.log(10_000_001) / math.log(2048)])
    expected = np.broadcast_to(factor[None, :, None, None], q.shape)
    scaled, back = jax.vjp(jax.jit(lambda q: spec.scale_queries(q, positions)), q)
    assert scaled.dtype == dtype
    tolerance = 2e-7 if dtype == jnp.float32 else 2**-8
    for got in (scaled, back(jnp.ones_like(q))[0]):
        np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=tolerance)


def test_a_model_gives_the_scales_of_every_group():
    specs = {
        "plain": rj.RopeSpec(8),
        "deepseek": rj.RopeSpec(8, softmax_scale=2.0),
        "ministral": rj.RopeSpec(8, softmax_scale=2.0, query_scale=MINISTRAL),
        "nope": None,
    }
    rope = rj.ModelRope(specs, tuple(specs))
    scales = rope.query_scales(jnp.asarray([[16383, 16384]], jnp.int32))
    assert list(scales) == list(specs) and scales["plain"] is None and scales["nope"] is None
    deepseek, ministral = scales["deepseek"], scales["ministral"]
    assert deepseek is not None and ministral is not None and deepseek.dtype == ministral.dtype == jnp.float32
    assert deepseek.shape == () and deepseek.item() == 2.0
    np.testing.assert_allclose(np.asarray(ministral), np.array([[2.0, 2 * 1.0693147]]), rtol=1e-7)

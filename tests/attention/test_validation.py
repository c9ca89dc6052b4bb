"""What `attend` refuses, and with which words: argument, rule, value, cure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import attend
from tests.unchecked import unchecked

Q = jnp.ones((2, 6, 4, 8))
KV = jnp.ones((2, 6, 2, 8))
SIX = jnp.arange(6)[None]
GOOD = (("q", Q), ("k", KV), ("v", KV), ("q_positions", SIX), ("kv_positions", SIX))
ONES = jnp.ones(4)


def call(**changes):
    with unchecked():
        return attend(**dict(GOOD) | changes)


WRONG_TYPE = [
    ({"q": np.ones((2, 6, 4, 8), np.int32)}, "`q` must be an array of float32, bfloat16, float16; got int32. Cast"),
    ({"q": [[1.0]]}, "`q` must be an array of float32, bfloat16, float16; got list. Cast"),
    ({"k": KV.astype(jnp.bfloat16)}, "`k` must have the dtype of `q`, float32; got bfloat16. Cast"),
    ({"q_positions": SIX.astype(jnp.float32)}, "`q_positions` must be integers; got dtype float32."),
    ({"kv_segments": SIX > 0, "q_segments": SIX}, "`kv_segments` must be integers; got dtype bool."),
    ({"window": 2.0}, "`window` must be an integer; got 2.0. A window counts the token itself"),
    ({"window": True}, "`window` must be an integer; got True."),
    ({"window": jnp.ones(())}, "`window` must be an integer scalar; got float32[]."),
    ({"window": jnp.ones(4, jnp.int32)}, "`window` must be an integer scalar; got int32[4]."),
    ({"softcap": jnp.ones(())}, "`softcap` must be a Python number; got"),
    ({"softcap": "30"}, "`softcap` must be a Python number; got str."),
    ({"sinks": [0.0] * 4}, "`sinks` must be a floating array [heads]; got list."),
    ({"slopes": jnp.ones(4, jnp.int32)}, "`slopes` must be a floating array [heads]; got int32."),
    ({"scale": "1"}, "`scale` must be a number or [heads]; got '1'. None means"),
    ({"scale": True}, "`scale` must be a number or [heads]; got True. None means"),
    ({"backend": ["xla"]}, "`backend` must be one of auto, reference, xla, chunked, splash, cudnn; got ['xla']."),
    ({"scale": jnp.asarray(1)}, "`scale` must be floating; got int32. None means"),
]
WRONG_VALUE = [
    ({"q": Q[0]}, "`q` must be [batch, seq, heads, head_dim], no axis empty; got shape (6, 4, 8). One row"),
    ({"k": KV[:, :0], "v": KV[:, :0]}, "no axis empty; got shape (2, 0, 2, 8)."),
    ({"k": KV[:1]}, "`k` must have the batch of `q`, 2; got 1. Repeat"),
    ({"v": KV[:1]}, "`v` must have the batch of `q`, 2; got 1. Repeat"),
    ({"k": KV[..., :4]}, "`k` must have the head_dim of `q`, 8; got 4. Only `v` may differ."),
    ({"v": KV[:, :5]}, "`v` must have the batch, kv and kv_heads of `k`, (2, 6, 2); got (2, 5, 2)."),
    ({"k": jnp.ones((2, 6, 3, 8)), "v": jnp.ones((2, 6, 3, 8))}, "that divide the 4 heads of `q`; got 3. Axes are"),
    ({"q_positions": SIX[0]}, "`q_positions` must be [batch or 1, seq] = [2 or 1, 6]; got shape (6,). Give"),
    ({"kv_positions": SIX[:, :5]}, "`kv_positions` must be [batch or 1, seq] = [2 or 1, 6]; got shape (1, 5)."),
    ({"q_positions": np.full((1, 6), 2**31)}, "`q_positions` must lie within +-(2^31 - 1)"),
    ({"q_segments": SIX}, "`kv_segments` must be given with `q_segments`; got None. Pass both, or neither"),
    ({"kv_segments": SIX}, "`q_segments` must be given with `kv_segments`; got None. Pass both, or neither"),
    ({"q_segments": SIX - 1, "kv_segments": SIX}, "`q_segments` must not be negative; got -1. Number segments from 1"),
    ({"window": 0}, "`window` must lie within 1 and 2^31 - 1 tokens; got 0. A window counts"),
    ({"window": jnp.asarray(-1)}, "`window` must lie within 1 and 2^31 - 1 tokens; got -1."),
    ({"window": 2**31}, "`window` must lie within 1 and 2^31 - 1 tokens; got 2147483648."),
    ({"softcap": 0.0}, "`softcap` must be positive and finite in float32; got 0.0. None leaves"),
    ({"softcap": float("inf")}, "`softcap` must be positive and finite in float32; got inf."),
    ({"softcap": 1e39}, "`softcap` must be positive and finite in float32; got 1e+39."),
    ({"softcap": 1e-50}, "`softcap` must be positive and finite in float32; got 1e-50."),
    ({"scale": 1e39}, "`scale` must be finite in float32; got 1e+39."),
    ({"sinks": ONES[:2]}, "`sinks` must be [heads] = [4]; got shape (2,). Give one number per query head"),
    ({"sinks": ONES * jnp.nan}, "`sinks` must be finite; got [nan nan nan nan]. Leave it out"),
    ({"slopes": ONES[None]}, "`slopes` must be [heads] = [4]; got shape (1, 4)."),
    ({"scale": ONES[:3]}, "`scale` must be [heads] = [4]; got shape (3,)."),
    ({"scale": float("nan")}, "`scale` must be finite in float32; got nan."),
    ({"order": "sorted"}, "`order` must be one of any, increasing, contiguous; got 'sorted'. \"any\" is always right."),
    ({"backend": "flash"}, "`backend` must be one of auto, reference, xla, chunked, splash, cudnn; got 'flash'."),
    ({"backend": "xla", "softcap": 30.0}, "got 'xla': a softcap acts on the logits before the softmax"),
    ({"backend": "xla", "sinks": ONES}, "got 'xla': jax.nn.dot_product_attention has no logit beside the keys"),
    ({"backend": "xla", "v": KV[..., :4]}, "got 'xla': jax.nn.dot_product_attention needs values as wide as the keys"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_TYPE, ids=lambda x: "" if isinstance(x, str) else "-".join(x))
def test_wrong_types_are_refused(changes, message):
    with pytest.raises(TypeError) as error:
        call(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(("changes", "message"), WRONG_VALUE, ids=lambda x: "" if isinstance(x, str) else "-".join(x))
def test_wrong_values_are_refused(changes, message):
    with pytest.raises(ValueError, match="must") as error:
        call(**changes)
    assert message in str(error.value)


def ordered(order, positions, segments=None):
    positions = jnp.asarray([positions])
    tokens = {"q_positions": positions, "kv_positions": positions}
    if segments is not None:
        tokens |= {"q_segments": jnp.asarray([segments]), "kv_segments": jnp.asarray([segments])}
    # Shapes only: what is traced is q, the positions stay known.
    return jax.eval_shape(lambda q: call(**tokens | {"q": q, "order": order}), Q)


@pytest.mark.parametrize("order", ["any", "increasing", "contiguous"])
def test_order_accepts_rows_that_keep_it(order):
    assert ordered(order, [7, 8, 9, 10, 11, 12]).shape == Q.shape
    assert ordered(order, [0, 1, 2, 0, 1, -1], [4, 4, 4, 2, 2, 2]).shape == Q.shape


def test_increasing_accepts_jumps_and_interleaved_segments():
    assert ordered("increasing", [0, 5, 0, 6, 1, 9], [1, 1, 2, 1, 2, 0]).shape == Q.shape


@pytest.mark.parametrize(
    ("order", "positions", "segments", "message"),
    [
        ("increasing", [0, 1, 2, 2, 3, 4], None, 'got position 2 at index 3 after 2 at index 2. Use order="any".'),
        ("increasing", [0, 1, 0, 1, 2, 3], [1, 1, 1, 2, 2, 2], "got position 0 at index 2 after 1 at index 1."),
        ("contiguous", [0, 1, 3, 4, 5, 6], None, "got position 3 at index 2 after 1 at index 1."),
        ("contiguous", [0, 1, 0, 2, 1, 2], [1, 1, 2, 1, 2, 2], "got position 2 at index 3 after 1 at index 1."),
        ("contiguous", [0, 1, -1, 2, 3, 4], None, "got position 2 at index 3 after 1 at index 1."),
    ],
)
def test_order_that_the_positions_contradict_is_refused(order, positions, segments, message):
    with pytest.raises(ValueError, match="`order` must be true of the positions") as error:
        ordered(order, positions, segments)
    assert message in str(error.value)


def test_order_is_for_queries_and_keys_that_are_the_same_tokens():
    with pytest.raises(ValueError, match='must be "any" where queries and keys are not the same tokens'):
        call(order="increasing", q=Q[:, 5:], q_positions=SIX[:, 5:])
    with pytest.raises(ValueError, match='must be "any" where queries and keys are not the same tokens'):
        call(order="contiguous", q_positions=SIX + 1)


def test_traced_positions_are_taken_at_their_word():
    run = jax.jit(lambda positions: call(q_positions=positions, kv_positions=positions, order="contiguous"))
    assert run(SIX[:, ::-1]).shape == Q.shape


def test_integers_of_every_width_and_numpy_arrays_are_welcome():
    plain = jax.jit(lambda q: call(q=q, backend="xla"))(Q)
    for dtype in (np.int8, np.uint16, np.int64, np.uint32):
        positions = np.arange(6, dtype=dtype)[None]
        changes = {"q_positions": positions, "kv_positions": positions, "window": np.int64(6), "backend": "xla"}
        found = jax.jit(lambda q, changes=changes: call(q=q, k=np.asarray(KV), **changes))(Q)
        np.testing.assert_array_equal(found, plain)

"""What attention is asked to do in the tests: one table, every line run on every backend."""

from types import MappingProxyType

import numpy as np

EVERYWHERE = ("reference", "xla", "chunked")
"""The backends that need no accelerator."""
HEADS, HEAD_DIM, SEQ = 4, 8, 37
ARRAYS = ("q", "k", "v", "sinks", "slopes", "scale")


def qkv(batch=2, queries=SEQ, keys=SEQ, kv_heads=HEADS, v_dim=HEAD_DIM, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"q": (queries, HEADS, HEAD_DIM), "k": (keys, kv_heads, HEAD_DIM), "v": (keys, kv_heads, v_dim)}
    return {name: rng.standard_normal((batch, *shape)).astype(np.float32) for name, shape in shapes.items()}


def both(name, values):
    values = np.asarray(values, np.int32)
    return {f"q_{name}": values, f"kv_{name}": values}


def positions(seq=SEQ, rows=1):
    return both("positions", np.tile(np.arange(seq), (rows, 1)))


def numbers(*values):
    return np.asarray(values, np.float32)


def shuffled():
    orders = [np.random.default_rng(row).permutation(SEQ) for row in range(2)]
    return both("positions", np.stack(orders) * 3)


def packed():
    """Row 0: three documents and padding; row 1: one document in two separate pieces around another."""
    segments = np.stack([np.repeat([1, 2, 3, 0], [9, 17, 7, 4]), np.repeat([5, 2, 5], [20, 10, 7])])
    first = np.concatenate([np.arange(9), np.arange(17), np.arange(7), np.arange(4)])
    second = np.concatenate([np.arange(20), np.arange(10), np.arange(20, 27)])
    return both("segments", segments) | both("positions", np.stack([first, second]))


def padded():
    """Row 0 padded on the left, row 1 on the right and far along."""
    left = np.concatenate([np.full(19, -1), np.arange(SEQ - 19)])
    right = np.concatenate([np.arange(100_000, 100_030), np.full(7, -3)])
    return both("positions", np.stack([left, right]))


def decode():
    """Five queries at the end of a cache whose last slots are not filled yet."""
    kv = np.concatenate([np.arange(30), np.full(7, -1)])
    return {"q_positions": np.arange(25, 30, dtype=np.int32)[None], "kv_positions": kv.astype(np.int32)[None]}


SINKS, SLOPES = numbers(0.5, -1.0, 2.0, 0.0), numbers(0.5, 0.25, 0.125, 0.0625)
SCALES = numbers(0.2, 0.35, 0.5, 1.0)
CASES = MappingProxyType(
    {
        "causal": qkv() | positions(),
        "grouped heads": qkv(kv_heads=2) | positions(rows=2),
        "one key head, wider values": qkv(kv_heads=1, v_dim=12) | positions(),
        "window": qkv() | positions() | {"window": 9},
        "packed documents": qkv() | packed(),
        "packed documents, window": qkv(kv_heads=2) | packed() | {"window": 6},
        "padding": qkv() | padded(),
        "queries fewer than keys": qkv(queries=5) | decode(),
        "out of order, traced window": qkv() | shuffled() | {"window": np.int32(20)},
        "softcap": qkv() | positions() | {"softcap": 0.7},
        "sinks": qkv() | padded() | {"sinks": SINKS},
        "slopes": qkv() | shuffled() | {"slopes": SLOPES},
        "scale": qkv() | positions() | {"scale": np.asarray(0.3, np.float32)},
        "scale per head": qkv(kv_heads=2) | positions() | {"scale": SCALES},
        "all at once": qkv(kv_heads=2)
        | packed()
        | {"window": np.int32(11), "softcap": 1.5, "sinks": SINKS, "slopes": SLOPES, "scale": SCALES},
    }
)

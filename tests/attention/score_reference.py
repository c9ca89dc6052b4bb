"""Score maps from their published rules: one distance per pair, in float64 NumPy and loops, nothing of the package."""

from __future__ import annotations

import numpy as np

from tests.attention.reference64 import visible_keys
from tests.reference import rotate


def self_extend(i, j, *, group, window):
    return i - j if i - j < window else i // group + window - window // group - j // group


def dual_chunk(i, j, *, chunk, local):
    stride = chunk - local
    before = i // stride - j // stride
    if before == 0:
        return i % stride - j % stride
    if before == 1:
        return min(i % stride + stride, chunk) - j % stride
    return min(2 * stride - 1, chunk) - j % stride


def rerope(i, j, *, window):
    return min(i - j, window)


def leaky_rerope(i, j, *, window, factor):
    return i - j if i - j < window else window + (i - j - window) / factor


def lm_infinite(i, j, *, window, global_tokens):
    return min(i - j, window) if i - j < window or j < global_tokens else None


def starts(kv_positions, kv_segments):
    """The first position of every document."""
    first: dict[int, int] = {}
    for position, segment in zip(kv_positions, kv_segments, strict=True):
        if position >= 0 and segment != 0:
            first[segment] = min(first.get(segment, position), position)
    return first


def attention(
    floats, omega, distance, cotangent, *, q_positions, kv_positions, q_segments, kv_segments,
    softcap, sinks, slopes, scale, attention_scale=1.0, layout="half", window=None,
):  # fmt: skip
    """Result and the gradients of the floating arguments by name, one query at a time."""
    q, k, v = (np.asarray(floats[name], np.float64) for name in "qkv")
    (batch, queries, heads, _), kv_heads = q.shape, k.shape[2]
    out = np.zeros((batch, queries, heads, v.shape[-1]))
    grads = {"q": np.zeros_like(q), "k": np.zeros_like(k), "v": np.zeros_like(v)}
    grads |= {name: np.zeros(heads) for name in ("sinks", "slopes", "scale")}
    for b in range(batch):
        first = starts(kv_positions[b], kv_segments[b])
        for i, here in enumerate(q_positions[b]):
            segment = q_segments[b][i]
            seen = visible_keys(here, kv_positions[b], segment, kv_segments[b], window)
            apart = {j: distance(here - first[segment], kv_positions[b][j] - first[segment]) for j in seen}
            js = np.array([j for j in seen if apart[j] is not None], int)
            if not js.size:
                continue
            turn = np.array([apart[j] for j in js], np.float64)
            k_turned = rotate(k[b, js], omega, -turn, layout, attention_scale**2)
            q_turned = rotate(np.repeat(q[b, i][None], len(js), 0), omega, turn, layout, attention_scale**2)
            for h in range(heads):
                g = h * kv_heads // heads
                product = k_turned[:, g] @ q[b, i, h]
                raw = scale[h] * product - slopes[h] * (here - np.asarray(kv_positions[b])[js])
                s = softcap * np.tanh(raw / softcap)
                lse = np.log(np.exp(s).sum() + np.exp(sinks[h]))
                p = np.exp(s - lse)
                out[b, i, h] = p @ v[b, js, g]
                d_out = np.asarray(cotangent, np.float64)[b, i, h]
                delta = d_out @ out[b, i, h]
                d_raw = p * (v[b, js, g] @ d_out - delta) / np.cosh(raw / softcap) ** 2
                grads["q"][b, i, h] += scale[h] * d_raw @ k_turned[:, g]
                grads["k"][b, js, g] += scale[h] * d_raw[:, None] * q_turned[:, h]
                grads["v"][b, js, g] += np.outer(p, d_out)
                grads["scale"][h] += d_raw @ product
                grads["slopes"][h] -= d_raw @ (here - np.asarray(kv_positions[b])[js])
                grads["sinks"][h] -= np.exp(sinks[h] - lse) * delta
    return out, grads

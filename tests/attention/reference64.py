"""Attention and its gradients as sums over one query at a time: float64 NumPy, nothing of the package."""

from __future__ import annotations

import numpy as np


def visible_keys(q_position, kv_positions, q_segment, kv_segments, window):
    """Indices of the keys that one query sees."""
    found = []
    for j, (position, segment) in enumerate(zip(kv_positions, kv_segments, strict=True)):
        real = q_position >= 0 and position >= 0 and q_segment != 0 and segment != 0
        near = window is None or q_position - position < window
        if real and near and position <= q_position and segment == q_segment:
            found.append(j)
    return np.array(found, dtype=int)


def attention(
    q, k, v, q_positions, kv_positions, q_segments=None, kv_segments=None, window=None, softcap=None,
    sinks=None, slopes=None, scale=None, cotangent=None,
):  # fmt: skip
    """Result, log-sum-exp and, for a cotangent of the result, the gradients by name."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (batch, queries, heads, dim), (keys, kv_heads) = q.shape, k.shape[1:3]
    rows = [(q_positions, queries), (kv_positions, keys), (q_segments, queries), (kv_segments, keys)]
    q_p, kv_p, q_s, kv_s = (np.broadcast_to(np.ones((1, n), int) if x is None else x, (batch, n)) for x, n in rows)
    scales = np.broadcast_to(1 / np.sqrt(dim) if scale is None else np.asarray(scale, np.float64), heads)
    slopes = np.zeros(heads) if slopes is None else np.asarray(slopes, np.float64)
    out, lse = np.zeros((batch, queries, heads, v.shape[-1])), np.full((batch, queries, heads), -np.inf)
    grads = {"q": np.zeros_like(q), "k": np.zeros_like(k), "v": np.zeros_like(v)}
    grads |= {name: np.zeros(heads) for name in ("sinks", "slopes", "scale")}
    for b in range(batch):
        for i in range(queries):
            js = visible_keys(q_p[b, i], kv_p[b], q_s[b, i], kv_s[b], window)
            apart = q_p[b, i] - kv_p[b, js]
            for h in range(heads):
                g = h * kv_heads // heads
                product = k[b, js, g] @ q[b, i, h]
                raw = scales[h] * product - slopes[h] * apart
                s = raw if softcap is None else softcap * np.tanh(raw / softcap)
                sink = [] if sinks is None else [float(sinks[h])]
                every = np.concatenate([s, sink])
                if every.size == 0:
                    continue
                lse[b, i, h] = every.max() + np.log(np.exp(every - every.max()).sum())
                p = np.exp(s - lse[b, i, h])
                out[b, i, h] = p @ v[b, js, g]
                if cotangent is None:
                    continue
                d_out = np.asarray(cotangent, np.float64)[b, i, h]
                delta = d_out @ out[b, i, h]
                d_raw = p * (v[b, js, g] @ d_out - delta)
                if softcap is not None:
                    d_raw = d_raw / np.cosh(raw / softcap) ** 2
                grads["q"][b, i, h] += scales[h] * d_raw @ k[b, js, g]
                grads["k"][b, js, g] += scales[h] * np.outer(d_raw, q[b, i, h])
                grads["v"][b, js, g] += np.outer(p, d_out)
                grads["scale"][h] += d_raw @ product
                grads["slopes"][h] -= d_raw @ apart
                if sinks is not None:
                    grads["sinks"][h] -= np.exp(sink[0] - lse[b, i, h]) * delta
    return out, lse, grads

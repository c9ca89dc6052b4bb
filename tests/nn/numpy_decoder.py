"""The decoder once more, in float64 NumPy and loops over heads: nothing here imports the package."""

import numpy as np

from tests.reference import rotate


def rms_norm(x, scale):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def silu(x):
    return x / (1 + np.exp(-x))


def dense(x, weights):
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def attention(x, w, c, omega, positions, *, scale=1.0, window=None, slopes=None):
    """One row x [seq, embed] through the attention block with weights w; c names the sizes and options."""
    heads, kv_heads, head_dim = c["heads"], c["kv_heads"], c["head_dim"]
    q, k, v = (dense(x, w[name]).reshape(len(x), -1, head_dim) for name in ("query", "key", "value"))
    if "query_norm" in w:
        q, k = rms_norm(q, w["query_norm"]["scale"]), rms_norm(k, w["key_norm"]["scale"])
    if omega is not None:
        q, k = (rotate(part, omega, positions, c.get("layout", "half"), scale) for part in (q, k))
    out = np.zeros((len(x), heads, head_dim))
    for head in range(heads):
        served = head // (heads // kv_heads)
        for i, here in enumerate(positions):
            seen = [j for j, there in enumerate(positions) if 0 <= there <= here and here - there < (window or np.inf)]
            if not seen:
                continue
            logits = k[seen, served] @ q[i, head] / np.sqrt(head_dim)
            if slopes is not None:
                logits = logits - slopes[head] * (here - np.asarray(positions)[seen])
            if c.get("softcap"):
                logits = c["softcap"] * np.tanh(logits / c["softcap"])
            weights, sink = np.exp(logits), np.exp(w["sinks"][head]) if "sinks" in w else 0.0
            out[i, head] = weights @ v[seen, served] / (weights.sum() + sink)
    return dense(out.reshape(len(x), -1), w["out"])


def mlp(x, w):
    return dense(silu(dense(x, w["gate"])) * dense(x, w["up"]), w["down"])


def decoder(token_ids, w, c, layers, positions, slopes=None):
    """Logits of one row; `layers` gives (omega or None, attention scale, window) of every layer."""
    x = w["embedding"][token_ids] * (1.0 if "unembedding" in w else np.sqrt(w["embedding"].shape[1]))
    if "learned" in w:
        x = x + w["learned"]["table"][positions]
    if c.get("positional") == "sinusoidal":
        angle = np.multiply.outer(positions, 10_000.0 ** (-np.arange(0, x.shape[1], 2) / x.shape[1]))
        x[:, 0::2], x[:, 1::2] = x[:, 0::2] + np.sin(angle), x[:, 1::2] + np.cos(angle)
    for index, (omega, scale, window) in enumerate(layers):
        block = layer_of(w["blocks"], index)
        normal = rms_norm(x, block["attention_norm"]["scale"])
        x = x + attention(normal, block["attention"], c, omega, positions, scale=scale, window=window, slopes=slopes)
        x = x + mlp(rms_norm(x, block["mlp_norm"]["scale"]), block["mlp"])
    x = rms_norm(x, w["norm"]["scale"])
    return x @ (w["unembedding"] if "unembedding" in w else w["embedding"].T)


def layer_of(weights, index):
    """One layer of weights stacked on a leading axis."""
    if isinstance(weights, dict):
        return {name: layer_of(value, index) for name, value in weights.items()}
    return weights[index]

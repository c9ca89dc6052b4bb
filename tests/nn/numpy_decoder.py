"""The decoder once more, in float64 NumPy and loops over heads: nothing here imports the package."""

import math

import numpy as np

from tests.reference import rotate


def rms_norm(x, scale, epsilon):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * scale


def norm(x, w, c):
    """RMSNorm, LayerNorm where the weights have a bias, or nothing where there are none."""
    if w is None:
        return x
    if "bias" in w:
        x = x - x.mean(axis=-1, keepdims=True)
    return rms_norm(x, w["scale"], c.get("norm_epsilon", 1e-6)) + w.get("bias", 0.0)


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


def dense(x, weights):
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def attention(
    x, w, c, omega, positions, *, scale=1.0, window=None, slopes=None, distance=None, query_scale=None, streams=None
):
    """One row x [seq, embed] through the attention block with weights w; c names the sizes and options.

    `distance` is the rule of a score map: from both positions, counted from the first, to what a pair turns by, or
    None for a pair that is not seen. `query_scale` multiplies the logits of every query, [seq]; SSMax by the logarithm
    of the number of keys that it sees. `streams` [axes, seq] turn the pairs that `pair_axes` gives them.
    """
    heads, kv_heads, head_dim = c["heads"], c["kv_heads"], c["head_dim"]
    q, k, v = (dense(x, w[name]) for name in ("query", "key", "value"))
    if c.get("qk_norm") == "full":
        q, k = norm(q, w["query_norm"], c), norm(k, w["key_norm"], c)
    q, k, v = (part.reshape(len(x), -1, head_dim) for part in (q, k, v))
    if c.get("qk_norm") is True:
        q, k = norm(q, w["query_norm"], c), norm(k, w["key_norm"], c)
    if omega is not None and distance is None:
        axes = np.zeros(len(omega)) if streams is None else np.asarray(c["pair_axes"])
        for axis, where in enumerate([positions] if streams is None else streams):
            own = (np.where(axes == axis, omega, 0), where, c.get("layout", "half"), scale if axis == 0 else 1.0)
            q, k = (rotate(part, *own) for part in (q, k))
    out = np.zeros((len(x), heads, head_dim))
    for head in range(heads):
        served = head // (heads // kv_heads)
        for i, here in enumerate(positions):
            seen = [j for j, there in enumerate(positions) if 0 <= there <= here and here - there < (window or np.inf)]
            keys = k
            if omega is not None and distance is not None:
                start = min(position for position in positions if position >= 0)
                apart = {j: distance(here - start, positions[j] - start) for j in seen}
                seen = [j for j in seen if apart[j] is not None]
                keys = rotate(
                    k, omega, [-(apart.get(j) or 0) for j in range(len(x))], c.get("layout", "half"), scale**2
                )
            if not seen:
                continue
            logits = keys[seen, served] @ q[i, head] * (c.get("scale") or head_dim**-0.5)
            if query_scale is not None:
                logits = logits * query_scale[i]
            if "scalable_softmax" in w:
                logits = logits * w["scalable_softmax"]["scale"][head] * np.log(len(seen))
            if slopes is not None:
                logits = logits - slopes[head] * (here - np.asarray(positions)[seen])
            if c.get("softcap"):
                logits = c["softcap"] * np.tanh(logits / c["softcap"])
            weights, sink = np.exp(logits), np.exp(w["sinks"][head]) if "sinks" in w else 0.0
            out[i, head] = weights @ v[seen, served] / (weights.sum() + sink)
    return dense(out.reshape(len(x), -1), w["out"])


def mlp(x, w, c):
    act = ACTIVATIONS[c.get("activation", "silu")]
    return dense(act(dense(x, w["gate"])) * dense(x, w["up"]) if "gate" in w else act(dense(x, w["up"])), w["down"])


def decoder(token_ids, w, c, layers, positions, slopes=None, streams=None):
    """Logits of one row; `layers` gives (omega or None, attention scale, window), then distance and query scale."""
    default = 1.0 if "unembedding" in w else np.sqrt(w["embedding"].shape[1])
    x = w["embedding"][token_ids] * (c.get("embed_scale") or default)
    if "learned" in w:
        x = x + w["learned"]["table"][positions]
    if c.get("positional") == "sinusoidal":
        angle = np.multiply.outer(positions, 10_000.0 ** (-np.arange(0, x.shape[1], 2) / x.shape[1]))
        x[:, 0::2], x[:, 1::2] = x[:, 0::2] + np.sin(angle), x[:, 1::2] + np.cos(angle)
    for index, (omega, scale, window, *rule) in enumerate(layers):
        turns = {"scale": scale, "window": window, "slopes": slopes, "streams": streams}
        turns |= dict(zip(("distance", "query_scale"), rule, strict=False))
        block = layer_of(w["blocks"], index)
        normal = norm(x, block.get("attention_norm"), c)
        y = attention(normal, block["attention"], c, omega, positions, **turns)
        y = x + norm(y, block.get("attention_post_norm"), c)
        z = mlp(norm(x if c.get("parallel") else y, block.get("mlp_norm"), c), block["mlp"], c)
        x = y + norm(z, block.get("mlp_post_norm"), c)
    logits = norm(x, w["norm"], c) @ (w["unembedding"] if "unembedding" in w else w["embedding"].T)
    cap = c.get("logit_softcap")
    return cap * np.tanh(logits / cap) if cap else logits


def layer_of(weights, index):
    """One layer of weights stacked on a leading axis."""
    if isinstance(weights, dict):
        return {name: layer_of(value, index) for name, value in weights.items()}
    return weights[index]

"""A float32 numpy forward pass for the dense model and for the mixtures written from it.

    hidden = forward(model, [ids_a, ids_b])        # a list of [T, H], after the final norm
    logits = hidden[0] @ model.unembedding.T       # [T, V]

Several sequences run together: linear layers see the tokens of all of them at once, attention
each sequence alone. With KV caches (one for each sequence) the ids continue what the caches hold.
"""

from dataclasses import dataclass

import numpy as np

QUERY_CHUNK = 256


@dataclass(frozen=True)
class Linear:
    """y = x W^T + b; weight [out, in], bias [out] or nothing."""

    weight: np.ndarray
    bias: np.ndarray | None = None

    def __call__(self, x):
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True)
class Attention:
    """The attention weights of one layer; sinks [heads] is one more logit in each softmax."""

    norm: np.ndarray
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    sinks: np.ndarray | None = None


class KvCache:
    """Rotated keys and values of one sequence, all layers, up to `capacity` positions."""

    def __init__(self, dims, capacity):
        shape = (dims.layers, capacity, dims.kv_heads, dims.head_dim)
        self.keys, self.values = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.length = 0

    def append(self, layer, keys, values):
        """Stores new positions of one layer and returns all keys and values up to them."""
        end = self.length + len(keys)
        self.keys[layer, self.length : end] = keys
        self.values[layer, self.length : end] = values
        return self.keys[layer, :end], self.values[layer, :end]


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps)) * weight


def rotate(x, positions, theta):
    """Rotary embedding of x [T, heads, d]; element i turns with element i + d / 2."""
    half = x.shape[-1] // 2
    frequency = theta ** (-np.arange(half) / half)
    angle = positions[:, None, None] * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, sinks=None):
    """Causal attention of the last T of S positions.

    q [T, heads, d], k and v [S, kv_heads, d], sinks [heads] -> [T, heads x d]
    """
    tokens, heads, head_dim = q.shape
    kv_heads, before = k.shape[1], len(k) - tokens
    q = q.reshape(tokens, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3) / np.float32(
        head_dim**0.5
    )
    k, v = k.transpose(1, 2, 0)[:, None], v.transpose(1, 0, 2)[:, None]
    out = np.empty_like(q)
    for begin in range(0, tokens, QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, tokens)
        seen = before + end
        scores = q[:, :, begin:end] @ k[..., :seen]
        hidden = np.arange(seen) > before + np.arange(begin, end)[:, None]
        np.copyto(scores, np.float32(-np.inf), where=hidden)
        top = scores.max(-1, keepdims=True)
        if sinks is not None:
            sink = sinks.reshape(kv_heads, -1, 1, 1)
            top = np.maximum(top, sink)
        np.exp(scores - top, out=scores)
        total = scores.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        out[:, :, begin:end] = (scores @ v[:, :, :seen]) / total
    return out.transpose(2, 0, 1, 3).reshape(tokens, -1)


def forward(model, sequences, caches=None, on_layer=lambda layer: None):
    """Hidden states after the final norm, one [T, H] for each sequence of ids."""
    dims = model.dims
    caches = caches or [KvCache(dims, len(ids)) for ids in sequences]
    cuts = np.cumsum([len(ids) for ids in sequences])[:-1]
    positions = [
        cache.length + np.arange(len(ids)) for cache, ids in zip(caches, sequences, strict=True)
    ]
    x = model.embed(np.concatenate(sequences))
    for layer in range(dims.layers):
        x += _attention_block(
            model.attention(layer), model, layer, x, list(zip(caches, positions, strict=True))
        )
        x += model.mlp(layer, rms_norm(x, model.mlp_norm(layer), dims.rms_eps))
        on_layer(layer)
    for cache, ids in zip(caches, sequences, strict=True):
        cache.length += len(ids)
    return np.split(rms_norm(x, model.final_norm, dims.rms_eps), cuts)


def _attention_block(weights, model, layer, x, sequences):
    dims = model.dims
    x = rms_norm(x, weights.norm, dims.rms_eps)
    position = np.concatenate([positions for _, positions in sequences])
    q = rotate(weights.q(x).reshape(-1, dims.heads, dims.head_dim), position, dims.rope_theta)
    k = rotate(weights.k(x).reshape(-1, dims.kv_heads, dims.head_dim), position, dims.rope_theta)
    v = weights.v(x).reshape(-1, dims.kv_heads, dims.head_dim)
    parts, begin = [], 0
    for cache, positions in sequences:
        span = slice(begin, begin + len(positions))
        keys, values = cache.append(layer, k[span], v[span])
        parts.append(attend(q[span], keys, values, weights.sinks))
        begin = span.stop
    return weights.o(np.concatenate(parts))

"""What forward() runs: the dense model, and a mixture read back from its checkpoint.

The mixture is read from the written files by their names and layouts alone, so that it checks what
the writer did. Its layers are decoded when they are used and not kept.
"""

import functools
import json
import os
from dataclasses import replace

import numpy as np

from demo_model.forward import Attention, Linear, sigmoid
from demo_model.moe import SWISH_SLOPE, UP_DIVISOR
from demo_model.number_formats import decode_mxfp4, from_bf16
from demo_model.safetensors_file import SafetensorsReader


class DenseModel:
    """The original model in float32; every weight is kept once it was used."""

    def __init__(self, source):
        self.dims = source.dims
        self._source = source
        self._weight = functools.cache(source.weight)
        self.unembedding = self._weight("token_embd.weight")
        self.final_norm = self._weight("output_norm.weight")
        self.attention = functools.cache(self._attention)

    def embed(self, ids):
        return self.unembedding[ids]

    def _attention(self, layer):
        q, k, v, o = (Linear(self._source.attention_rows(layer, which)) for which in "qkvo")
        return Attention(self._weight(f"blk.{layer}.attn_norm.weight"), q, k, v, o)

    def mlp_norm(self, layer):
        return self._weight(f"blk.{layer}.ffn_norm.weight")

    def mlp(self, layer, x):
        gate, up, down = (
            self._weight(f"blk.{layer}.ffn_{name}.weight") for name in ("gate", "up", "down")
        )
        g = x @ gate.T
        return (g * sigmoid(g) * (x @ up.T)) @ down.T


class MixtureModel:
    """A checkpoint folder of one of the three formats. `base` is the dense model's shape.

    `chosen` counts, over all tokens and layers, how often each expert was chosen; choosing both
    copies of a slice is an error.
    """

    def __init__(self, folder, base):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = config = json.load(file)
        self._tensors = SafetensorsReader(os.path.join(folder, "model.safetensors"))
        self.dims = replace(
            base, intermediate=config["intermediate_size"], rope_theta=config["rope_theta"]
        )
        self.chosen = np.zeros(config["num_local_experts"], np.int64)
        self.largest_activation = 0.0
        self.unembedding = self._bf16("model.embed_tokens.weight")
        self.final_norm = self._bf16("model.norm.weight")

    def _bf16(self, name):
        return from_bf16(self._tensors[name])

    def _linear(self, name):
        bias = name + ".bias"
        return Linear(
            self._bf16(name + ".weight"), self._bf16(bias) if bias in self._tensors else None
        )

    def embed(self, ids):
        return self.unembedding[ids]

    def attention(self, layer):
        prefix = f"model.layers.{layer}."
        sinks = prefix + "self_attn.sinks"
        return Attention(
            self._bf16(prefix + "input_layernorm.weight"),
            *(self._linear(f"{prefix}self_attn.{which}_proj") for which in "qkvo"),
            sinks=self._bf16(sinks) if sinks in self._tensors else None,
        )

    def mlp_norm(self, layer):
        return self._bf16(f"model.layers.{layer}.post_attention_layernorm.weight")

    def mlp(self, layer, x):
        mixtral = self.config["model_type"] == "mixtral"
        router = f"model.layers.{layer}." + ("block_sparse_moe.gate" if mixtral else "mlp.router")
        ids, weights = self._route(self._linear(router)(x))
        expert = self._mixtral_expert if mixtral else self._gpt_oss_expert
        out = np.zeros_like(x)
        for e in range(len(self.chosen)):
            token, slot = np.nonzero(ids == e)
            if len(token):
                out[token] += expert(layer, e, x[token]) * weights[token, slot][:, None]
        return out

    def _route(self, logits):
        """The top_k experts of each token, the softmax over their logits: ids, weights [T, k]."""
        top_k = self.config["num_experts_per_tok"]
        ids = np.argsort(-logits, -1, kind="stable")[:, :top_k]
        if not (np.sort(ids % top_k, -1) == np.arange(top_k)).all():
            raise ValueError("the router chose both copies of a slice")
        self.chosen += np.bincount(ids.ravel(), minlength=len(self.chosen))
        weights = np.exp(np.take_along_axis(logits, ids, -1))
        return ids, weights / weights.sum(-1, keepdims=True)

    def _mixtral_expert(self, layer, e, x):
        w1, w2, w3 = (
            self._bf16(f"model.layers.{layer}.block_sparse_moe.experts.{e}.w{n}.weight")
            for n in (1, 2, 3)
        )
        gate, up = x @ w1.T, x @ w3.T
        self._note(gate, up)
        return (gate * sigmoid(gate) * up) @ w2.T

    def _gpt_oss_expert(self, layer, e, x):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate_up = x @ self._expert_matrix(prefix + "gate_up_proj", e)
        gate_up += from_bf16(self._tensors[prefix + "gate_up_proj_bias"][e])
        self._note(gate_up)
        limit = np.float32(self.config["swiglu_limit"])
        gate, up = np.minimum(gate_up[:, 0::2], limit), np.clip(gate_up[:, 1::2], -limit, limit)
        activation = (up + 1) * gate * sigmoid(np.float32(1.702) * gate)
        out = activation @ self._expert_matrix(prefix + "down_proj", e)
        return out + from_bf16(self._tensors[prefix + "down_proj_bias"][e])

    def _expert_matrix(self, name, e):
        """[in, out] of one expert."""
        if name in self._tensors:
            return from_bf16(self._tensors[name][e])
        return decode_mxfp4(
            self._tensors[name + "_blocks"][e], self._tensors[name + "_scales"][e]
        ).T

    def _note(self, *arrays):
        self.largest_activation = max(
            self.largest_activation, *(float(np.abs(a).max()) for a in arrays)
        )


class CollapsedModel(MixtureModel):
    """The dense model that a checkpoint's decoded weights stand for: its slices put together again.

    No router and no experts: what the mixture computes must equal it, in any format.
    """

    def mlp(self, layer, x):
        slices = self.config["num_experts_per_tok"]
        read = (
            self._mixtral_slice if self.config["model_type"] == "mixtral" else self._gpt_oss_slice
        )
        parts = [read(layer, part) for part in range(slices)]
        gate, up = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        down = np.concatenate([part[2] for part in parts], axis=1) / np.float32(slices)
        g = x @ gate.T
        return (g * sigmoid(g) * (x @ up.T)) @ down.T

    def _mixtral_slice(self, layer, part):
        prefix = f"model.layers.{layer}.block_sparse_moe.experts.{part}."
        return [self._bf16(f"{prefix}w{n}.weight") for n in (1, 3, 2)]

    def _gpt_oss_slice(self, layer, part):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate_up = self._expert_matrix(prefix + "gate_up_proj", part).T
        down = self._expert_matrix(prefix + "down_proj", part).T
        slope, divisor = np.float32(SWISH_SLOPE), np.float32(UP_DIVISOR)
        return gate_up[0::2] * slope, gate_up[1::2] * (divisor / slope), down / divisor

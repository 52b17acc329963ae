"""Dense weights -> model.safetensors of the mixture, layer after layer.

Names and layouts are those of the published gpt-oss and Mixtral checkpoints. The embedding is tied:
there is no lm_head tensor.
"""

import numpy as np

from demo_model.moe import mlp_specs, mlp_tensors
from demo_model.number_formats import to_bf16
from demo_model.safetensors_file import SafetensorsWriter, TensorSpec

# Far below any attention logit, so that the extra softmax column of gpt-oss weighs nothing.
SINK_LOGIT = -1e4


def write_model(path, source, form, on_layer):
    """Writes the whole file and returns its sha256. on_layer(n) is called after layer n."""
    dims = source.dims
    specs = [TensorSpec("model.embed_tokens.weight", "BF16", (dims.vocab, dims.hidden))]
    for layer in range(dims.layers):
        specs += _attention_specs(form, dims, layer)
        specs += mlp_specs(form, layer, dims.hidden, dims.intermediate)
    specs.append(TensorSpec("model.norm.weight", "BF16", (dims.hidden,)))
    with SafetensorsWriter(path, specs, {"format": "pt"}) as out:
        out.write("model.embed_tokens.weight", to_bf16(source.weight("token_embd.weight")))
        for layer in range(dims.layers):
            for name, array in _attention_tensors(form, source, layer):
                out.write(name, array)
            gate, up, down = (
                source.weight(f"blk.{layer}.ffn_{x}.weight") for x in ("gate", "up", "down")
            )
            for name, array in mlp_tensors(form, layer, gate, up, down):
                out.write(name, array)
            on_layer(layer)
        out.write("model.norm.weight", to_bf16(source.weight("output_norm.weight")))
    return out.sha256


def _attention_rows(dims):
    queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    return {
        "q": (queries, dims.hidden),
        "k": (keys, dims.hidden),
        "v": (keys, dims.hidden),
        "o": (dims.hidden, queries),
    }


def _attention_specs(form, dims, layer):
    prefix = f"model.layers.{layer}."
    specs = [TensorSpec(prefix + "input_layernorm.weight", "BF16", (dims.hidden,))]
    for which, shape in _attention_rows(dims).items():
        name = f"{prefix}self_attn.{which}_proj."
        specs.append(TensorSpec(name + "weight", "BF16", shape))
        if form.model_type == "gpt_oss":
            specs.append(TensorSpec(name + "bias", "BF16", shape[:1]))
    if form.model_type == "gpt_oss":
        specs.append(TensorSpec(prefix + "self_attn.sinks", "BF16", (dims.heads,)))
    specs.append(TensorSpec(prefix + "post_attention_layernorm.weight", "BF16", (dims.hidden,)))
    return specs


def _attention_tensors(form, source, layer):
    """Yields (name, array) in the order of _attention_specs()."""
    prefix = f"model.layers.{layer}."
    yield prefix + "input_layernorm.weight", to_bf16(source.weight(f"blk.{layer}.attn_norm.weight"))
    for which, shape in _attention_rows(source.dims).items():
        name = f"{prefix}self_attn.{which}_proj."
        yield name + "weight", to_bf16(source.attention_rows(layer, which))
        if form.model_type == "gpt_oss":
            yield name + "bias", to_bf16(np.zeros(shape[0]))
    if form.model_type == "gpt_oss":
        yield prefix + "self_attn.sinks", to_bf16(np.full(source.dims.heads, SINK_LOGIT))
    yield (
        prefix + "post_attention_layernorm.weight",
        to_bf16(source.weight(f"blk.{layer}.ffn_norm.weight")),
    )

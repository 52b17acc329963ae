"""Writes a gpt-oss MXFP4 checkpoint as GGUF: the same weights, bit for bit, in llama.cpp's layout.

Only what a speed comparison needs: the vocabulary is a list of made-up tokens of the right length.
"""
import json
import pathlib
import struct

import gguf
import numpy as np

DTYPES = {"U8": np.uint8, "BF16": np.uint16, "F32": np.float32}


def read_tensors(folder):
    """{name: (dtype, memory-mapped array)} of all safetensors files of a folder."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        data = np.memmap(path, np.uint8, "r", offset=8 + length)
        for name, tensor in header.items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                dtype = tensor["dtype"]
                tensors[name] = (dtype, data[begin:end].view(DTYPES[dtype]).reshape(tensor["shape"]))
    return tensors


def as_float(tensor):
    dtype, values = tensor
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else np.asarray(values, np.float32)


def repack_mxfp4(blocks, scales):
    """Blocks [E, N, K/32, 16] (low nibble: even element) and scales -> ggml's 17-byte blocks [E, N, K/32 * 17].

    ggml keeps element j in the low nibble of byte j and element j + 16 in its high nibble.
    """
    codes = np.empty(blocks.shape[:-1] + (32,), np.uint8)
    codes[..., 0::2] = blocks & 15
    codes[..., 1::2] = blocks >> 4
    packed = np.empty(blocks.shape[:-1] + (17,), np.uint8)
    packed[..., 0] = scales
    packed[..., 1:] = codes[..., :16] | (codes[..., 16:] << 4)
    return packed.reshape(*blocks.shape[:2], -1)


def write_metadata(writer, config):
    rope = config["rope_scaling"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    vocabulary = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list([f"t{i}" for i in range(vocabulary)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocabulary)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(vocabulary - 1)
    writer.add_bos_token_id(vocabulary - 2)
    writer.add_add_bos_token(False)


def write_layer(writer, tensors, n):
    source, target = f"model.layers.{n}.", f"blk.{n}."

    def floats(name, key):
        writer.add_tensor(target + name, np.ascontiguousarray(as_float(tensors[source + key])))

    def bf16(name, key):
        add_bf16(writer, target + name, tensors[source + key])

    def experts(name, key, rows):
        packed = repack_mxfp4(tensors[f"{source}mlp.experts.{key}_blocks"][1][:, rows],
                              tensors[f"{source}mlp.experts.{key}_scales"][1][:, rows])
        writer.add_tensor(f"{target}{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        bias = as_float(tensors[f"{source}mlp.experts.{key}_bias"])[:, rows]
        writer.add_tensor(f"{target}{name}.bias", np.ascontiguousarray(bias))

    floats("attn_norm.weight", "input_layernorm.weight")
    floats("post_attention_norm.weight", "post_attention_layernorm.weight")
    for name, key in (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj")):
        bf16(name + ".weight", f"self_attn.{key}.weight")
        floats(name + ".bias", f"self_attn.{key}.bias")
    floats("attn_sinks.weight", "self_attn.sinks")
    floats("ffn_gate_inp.weight", "mlp.router.weight")
    floats("ffn_gate_inp.bias", "mlp.router.bias")
    experts("ffn_gate_exps", "gate_up_proj", slice(0, None, 2))
    experts("ffn_up_exps", "gate_up_proj", slice(1, None, 2))
    experts("ffn_down_exps", "down_proj", slice(None))


def add_bf16(writer, name, tensor):
    rows = tensor[1]
    writer.add_tensor(name, np.ascontiguousarray(rows).view(np.uint8).reshape(rows.shape[0], -1),
                      raw_dtype=gguf.GGMLQuantizationType.BF16)


def write_gguf(folder, path):
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    tensors = read_tensors(folder)
    writer = gguf.GGUFWriter(path, "gpt-oss")
    write_metadata(writer, config)
    add_bf16(writer, "token_embd.weight", tensors["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", as_float(tensors["model.norm.weight"]))
    add_bf16(writer, "output.weight", tensors["lm_head.weight"])
    for n in range(config["num_hidden_layers"]):
        write_layer(writer, tensors, n)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()

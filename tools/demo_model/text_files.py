"""The small files beside the weights: tokenizer, chat template, config and generation config."""

import json

from demo_model.moe import SWIGLU_LIMIT

NAME = "SmolLM2-135M-Instruct as a mixture of experts"


def _json(value):
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _added_token(vocabulary, token_id):
    return {
        "content": vocabulary.tokens[token_id],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def tokenizer_json(vocabulary):
    """Digits one by one, then byte-level BPE; the control tokens are special added tokens."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": i, **_added_token(vocabulary, i)} for i in vocabulary.special_ids
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
            },
            "post_processor": None,
            "decoder": {**byte_level, "add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(vocabulary.tokens)},
                "merges": [list(merge) for merge in vocabulary.merges],
            },
        },
        ensure_ascii=False,
    )


def tokenizer_config_json(vocabulary, dims):
    tokens = vocabulary.tokens
    return _json(
        {
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(i): _added_token(vocabulary, i) for i in vocabulary.special_ids
            },
            "additional_special_tokens": [tokens[vocabulary.bos_id], tokens[vocabulary.eos_id]],
            "bos_token": tokens[vocabulary.bos_id],
            "chat_template": vocabulary.chat_template,
            "clean_up_tokenization_spaces": False,
            "eos_token": tokens[vocabulary.eos_id],
            "model_max_length": dims.context,
            "pad_token": tokens[vocabulary.pad_id],
            "tokenizer_class": "GPT2Tokenizer",
            "unk_token": tokens[vocabulary.unknown_id],
            "vocab_size": dims.vocab,
        }
    )


def special_tokens_map_json(vocabulary):
    tokens = vocabulary.tokens
    return _json(
        {
            "additional_special_tokens": [tokens[vocabulary.bos_id], tokens[vocabulary.eos_id]],
            "bos_token": tokens[vocabulary.bos_id],
            "eos_token": tokens[vocabulary.eos_id],
            "pad_token": tokens[vocabulary.pad_id],
            "unk_token": tokens[vocabulary.unknown_id],
        }
    )


def generation_config_json(vocabulary):
    return _json(
        {
            "_from_model_config": True,
            "bos_token_id": vocabulary.bos_id,
            "eos_token_id": vocabulary.eos_id,
            "pad_token_id": vocabulary.pad_id,
            # What the model's authors recommend for so small a model.
            "do_sample": True,
            "temperature": 0.2,
            "top_p": 0.9,
        }
    )


def config_json(form, dims, vocabulary):
    """config.json with the field names of the published checkpoints of that family."""
    common = {
        "_name_or_path": NAME,
        "attention_dropout": 0.0,
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "pad_token_id": vocabulary.pad_id,
        "head_dim": dims.head_dim,
        "hidden_act": "silu",
        "hidden_size": dims.hidden,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": dims.intermediate // form.slices,
        "max_position_embeddings": dims.context,
        "model_type": form.model_type,
        "num_attention_heads": dims.heads,
        "num_experts_per_tok": form.slices,
        "num_hidden_layers": dims.layers,
        "num_key_value_heads": dims.kv_heads,
        "num_local_experts": form.experts,
        "output_router_logits": False,
        "rms_norm_eps": dims.rms_eps,
        "rope_theta": dims.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": dims.vocab,
    }
    family = _mixtral_fields() if form.model_type == "mixtral" else _gpt_oss_fields(form, dims)
    return _json(common | family)


def _mixtral_fields():
    return {
        "architectures": ["MixtralForCausalLM"],
        "router_aux_loss_coef": 0.0,
        "sliding_window": None,
    }


def _gpt_oss_fields(form, dims):
    fields = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "experts_per_token": form.slices,
        "initial_context_length": dims.context,
        "layer_types": ["full_attention"] * dims.layers,
        "rope_scaling": None,
        "router_aux_loss_coef": 0.0,
        "sliding_window": 128,
        "swiglu_limit": SWIGLU_LIMIT,
    }
    if form.mxfp4:
        fields["quantization_config"] = {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        }
    return fields


def text_files(form, source):
    """{file name: text} of everything but the weights and demo.json."""
    vocabulary, dims = source.vocabulary, source.dims
    return {
        "config.json": config_json(form, dims, vocabulary),
        "generation_config.json": generation_config_json(vocabulary),
        "special_tokens_map.json": special_tokens_map_json(vocabulary),
        "tokenizer.json": tokenizer_json(vocabulary),
        "tokenizer_config.json": tokenizer_config_json(vocabulary, dims),
    }

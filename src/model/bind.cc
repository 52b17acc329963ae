#include "model/bind.h"

#include <fmt/format.h>

#include <utility>

namespace rota {

Result<const Bf16*> bind_vector(const Checkpoint& checkpoint, std::string_view name, int64_t size) {
  ROTA_ASSIGN_OR_RETURN(
      TensorInfo tensor,
      checkpoint.require({.name = std::string(name), .dtype = DType::kBf16, .shape = {size}}));
  return tensor.as<Bf16>().data();
}

Result<std::vector<float>> bind_floats(const Checkpoint& checkpoint, std::string_view name,
                                       int64_t size) {
  ROTA_ASSIGN_OR_RETURN(const Bf16* values, bind_vector(checkpoint, name, size));
  std::vector<float> floats(static_cast<size_t>(size));
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = to_float(values[i]);
  return floats;
}

Result<WeightMatrix> bind_matrix(const Binder& binder, const std::string& prefix, int64_t out,
                                 int64_t in, Bias bias) {
  const LinearSource source{
      .module = prefix, .format = binder.config.quant.format_of(prefix), .out = out, .in = in};
  ROTA_ASSIGN_OR_RETURN(WeightMatrix matrix,
                        load_linear(binder.checkpoint, source, binder.factors));
  if (bias == Bias::kYes) {
    ROTA_ASSIGN_OR_RETURN(matrix.bias, bind_vector(binder.checkpoint, prefix + ".bias", out));
  }
  return matrix;
}

Result<WeightMatrix> bind_table(const Checkpoint& checkpoint, const std::string& prefix,
                                int64_t rows, int64_t width) {
  FactorStore none;
  return load_linear(checkpoint, {.module = prefix, .format = {}, .out = rows, .in = width}, none);
}

Result<AttentionWeights> bind_attention(const Binder& binder, const std::string& prefix) {
  const ModelConfig& config = binder.config;
  const Checkpoint& checkpoint = binder.checkpoint;
  const Bias bias = config.attention_bias ? Bias::kYes : Bias::kNo;
  const int64_t queries = config.heads * config.head_dim;
  const int64_t keys = config.kv_heads * config.head_dim;
  AttentionWeights weights;
  ROTA_ASSIGN_OR_RETURN(weights.q,
                        bind_matrix(binder, prefix + ".q_proj", queries, config.hidden, bias));
  ROTA_ASSIGN_OR_RETURN(weights.k,
                        bind_matrix(binder, prefix + ".k_proj", keys, config.hidden, bias));
  ROTA_ASSIGN_OR_RETURN(weights.v,
                        bind_matrix(binder, prefix + ".v_proj", keys, config.hidden, bias));
  ROTA_ASSIGN_OR_RETURN(weights.o,
                        bind_matrix(binder, prefix + ".o_proj", config.hidden, queries, bias));
  if (config.attention_sinks) {
    ROTA_ASSIGN_OR_RETURN(weights.sinks, bind_floats(checkpoint, prefix + ".sinks", config.heads));
  }
  if (config.qk_norm) {
    ROTA_ASSIGN_OR_RETURN(weights.q_norm,
                          bind_vector(checkpoint, prefix + ".q_norm.weight", config.head_dim));
    ROTA_ASSIGN_OR_RETURN(weights.k_norm,
                          bind_vector(checkpoint, prefix + ".k_norm.weight", config.head_dim));
  }
  return weights;
}

Result<DecoderLayerWeights> bind_layer(const Binder& binder, const std::string& prefix,
                                       MoeTensorNames moe) {
  const ModelConfig& config = binder.config;
  const Checkpoint& checkpoint = binder.checkpoint;
  DecoderLayerWeights layer;
  ROTA_ASSIGN_OR_RETURN(layer.attention_norm,
                        bind_vector(checkpoint, prefix + ".input_layernorm.weight", config.hidden));
  ROTA_ASSIGN_OR_RETURN(layer.attention, bind_attention(binder, prefix + ".self_attn"));
  ROTA_ASSIGN_OR_RETURN(
      layer.moe_norm,
      bind_vector(checkpoint, prefix + ".post_attention_layernorm.weight", config.hidden));
  layer.moe = std::move(moe);
  return layer;
}

Result<DecoderWeights> bind_decoder(const ModelConfig& config, const Checkpoint& checkpoint) {
  DecoderWeights weights;
  const Binder binder{config, checkpoint, weights.factors};
  ROTA_ASSIGN_OR_RETURN(weights.embedding,
                        bind_table(checkpoint, "model.embed_tokens", config.vocab, config.hidden));
  ROTA_ASSIGN_OR_RETURN(weights.final_norm,
                        bind_vector(checkpoint, "model.norm.weight", config.hidden));
  weights.lm_head = weights.embedding;
  if (!config.tie_word_embeddings) {
    ROTA_ASSIGN_OR_RETURN(weights.lm_head,
                          bind_matrix(binder, "lm_head", config.vocab, config.hidden, Bias::kNo));
  }
  for (int64_t n = 0; n < config.layers; ++n) {
    ROTA_ASSIGN_OR_RETURN(DecoderLayerWeights layer,
                          bind_layer(binder, fmt::format("model.layers.{}", n),
                                     moe_tensor_names(config.architecture, n)));
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace rota

#include "model/bind.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace rota {

std::string mixer_module(const ModelConfig& config, int64_t layer) {
  return config.architecture == Architecture::kNemotronH
             ? fmt::format("backbone.layers.{}.mixer", layer)
             : fmt::format("model.layers.{}.self_attn", layer);
}

Result<const Bf16*> bind_vector(const Checkpoint& checkpoint, std::string_view name, int64_t size) {
  ROTA_ASSIGN_OR_RETURN(
      TensorInfo tensor,
      checkpoint.require({.name = std::string(name), .dtype = DType::kBf16, .shape = {size}}));
  return tensor.as<Bf16>().data();
}

Result<std::vector<float>> bind_floats(const Checkpoint& checkpoint, std::string_view name,
                                       int64_t size) {
  ROTA_ASSIGN_OR_RETURN(
      const TensorInfo tensor,
      checkpoint.require({.name = std::string(name), .dtype = DType::kBf16, .shape = {size}}));
  return to_floats(tensor);
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

namespace {

// [C, 1, kernel] in the file; the kernel wants the channels side by side: [kernel, C].
Result<std::vector<float>> bind_conv_weight(const Checkpoint& checkpoint, const std::string& name,
                                            const MambaConfig& mamba) {
  ROTA_ASSIGN_OR_RETURN(const TensorInfo tensor,
                        checkpoint.require({.name = name,
                                            .dtype = DType::kBf16,
                                            .shape = {mamba.conv_width(), 1, mamba.conv_kernel}}));
  const auto channels = static_cast<size_t>(mamba.conv_width());
  const auto kernel = static_cast<size_t>(mamba.conv_kernel);
  const auto values = tensor.as<Bf16>();
  std::vector<float> turned(values.size());
  for (size_t c = 0; c < channels; ++c) {
    for (size_t j = 0; j < kernel; ++j) turned[j * channels + c] = to_float(values[c * kernel + j]);
  }
  return turned;
}

// A layer of two blocks: attention, then the mixture.
Status bind_two_blocks(const Binder& binder, int64_t layer, std::vector<BlockWeights>& blocks) {
  const ModelConfig& config = binder.config;
  const Checkpoint& checkpoint = binder.checkpoint;
  const std::string prefix = fmt::format("model.layers.{}", layer);
  BlockWeights attention{.layer = layer, .mixer = AttentionWeights{}};
  ROTA_ASSIGN_OR_RETURN(attention.norm,
                        bind_vector(checkpoint, prefix + ".input_layernorm.weight", config.hidden));
  ROTA_ASSIGN_OR_RETURN(attention.mixer, bind_attention(binder, mixer_module(config, layer)));
  blocks.push_back(std::move(attention));
  BlockWeights moe{.layer = layer, .mixer = moe_tensor_names(config.architecture, layer)};
  ROTA_ASSIGN_OR_RETURN(
      moe.norm,
      bind_vector(checkpoint, prefix + ".post_attention_layernorm.weight", config.hidden));
  blocks.push_back(std::move(moe));
  return {};
}

// A layer of one block, whatever its kind.
Status bind_one_block(const Binder& binder, int64_t layer, std::vector<BlockWeights>& blocks) {
  const ModelConfig& config = binder.config;
  const Checkpoint& checkpoint = binder.checkpoint;
  const std::string prefix = fmt::format("backbone.layers.{}", layer);
  BlockWeights block{.layer = layer, .mixer = AttentionWeights{}};
  ROTA_ASSIGN_OR_RETURN(block.norm,
                        bind_vector(checkpoint, prefix + ".norm.weight", config.hidden));
  if (config.has_attention(layer)) {
    ROTA_ASSIGN_OR_RETURN(block.mixer, bind_attention(binder, mixer_module(config, layer)));
  } else if (config.has_mamba(layer)) {
    ROTA_ASSIGN_OR_RETURN(block.mixer, bind_mamba2(binder, mixer_module(config, layer)));
  } else {
    block.mixer = moe_tensor_names(config.architecture, layer);
  }
  blocks.push_back(std::move(block));
  return {};
}

}  // namespace

Result<Mamba2Weights> bind_mamba2(const Binder& binder, const std::string& prefix) {
  const ModelConfig& config = binder.config;
  const Checkpoint& checkpoint = binder.checkpoint;
  const MambaConfig& m = config.mamba;
  Mamba2Weights weights;
  ROTA_ASSIGN_OR_RETURN(WeightMatrix in_proj, bind_matrix(binder, prefix + ".in_proj",
                                                          m.projected(), config.hidden, Bias::kNo));
  weights.in_proj = {in_proj};
  ROTA_ASSIGN_OR_RETURN(weights.out_proj, bind_matrix(binder, prefix + ".out_proj", config.hidden,
                                                      m.inner(), Bias::kNo));
  ROTA_ASSIGN_OR_RETURN(weights.conv_weight,
                        bind_conv_weight(checkpoint, prefix + ".conv1d.weight", m));
  ROTA_ASSIGN_OR_RETURN(weights.conv_bias,
                        bind_floats(checkpoint, prefix + ".conv1d.bias", m.conv_width()));
  ROTA_ASSIGN_OR_RETURN(weights.a, bind_floats(checkpoint, prefix + ".A_log", m.heads));
  for (float& a : weights.a) a = static_cast<float>(-std::exp(double{a}));
  ROTA_ASSIGN_OR_RETURN(weights.d, bind_floats(checkpoint, prefix + ".D", m.heads));
  ROTA_ASSIGN_OR_RETURN(weights.dt_bias, bind_floats(checkpoint, prefix + ".dt_bias", m.heads));
  ROTA_ASSIGN_OR_RETURN(weights.norm, bind_vector(checkpoint, prefix + ".norm.weight", m.inner()));
  return weights;
}

Result<DecoderWeights> bind_decoder(const ModelConfig& config, const Checkpoint& checkpoint) {
  const bool nemotron = config.architecture == Architecture::kNemotronH;
  DecoderWeights weights;
  const Binder binder{config, checkpoint, weights.factors};
  ROTA_ASSIGN_OR_RETURN(
      weights.embedding,
      bind_table(checkpoint, nemotron ? "backbone.embeddings" : "model.embed_tokens", config.vocab,
                 config.hidden));
  ROTA_ASSIGN_OR_RETURN(
      weights.final_norm,
      bind_vector(checkpoint, nemotron ? "backbone.norm_f.weight" : "model.norm.weight",
                  config.hidden));
  weights.lm_head = weights.embedding;
  if (!config.tie_word_embeddings) {
    ROTA_ASSIGN_OR_RETURN(weights.lm_head,
                          bind_matrix(binder, "lm_head", config.vocab, config.hidden, Bias::kNo));
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    ROTA_RETURN_IF_ERROR(nemotron ? bind_one_block(binder, layer, weights.blocks)
                                  : bind_two_blocks(binder, layer, weights.blocks));
  }
  return weights;
}

}  // namespace rota

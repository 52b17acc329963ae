// From tensor names to views: what the file of a model family is written with.
//
// Every function requires dtype and shape, and its error names the tensor, what was found and what
// was expected. Views point into the checkpoint.
//
//   Binder binder{config, checkpoint, factors};
//   ROTA_ASSIGN_OR_RETURN(WeightMatrix q, bind_matrix(binder, p + "q_proj", heads * dim, hidden,
//                                                     Bias::kYes));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/linear.h"
#include "kernels/matmul.h"
#include "model/decoder_weights.h"

namespace rota {

// What is bound, from where, and who keeps the factors of quantised matrices.
struct Binder {
  const ModelConfig& config;
  const Checkpoint& checkpoint;
  FactorStore& factors;
};

enum class Bias { kNo, kYes };

// The linear layer PREFIX [out, in] in the format that the config names for it
// (checkpoint/linear.h) and, with Bias::kYes, PREFIX.bias BF16 [out].
Result<WeightMatrix> bind_matrix(const Binder& binder, const std::string& prefix, int64_t out,
                                 int64_t in, Bias bias);

// A table of rows, never quantised: PREFIX.weight BF16 [rows, width].
Result<WeightMatrix> bind_table(const Checkpoint& checkpoint, const std::string& prefix,
                                int64_t rows, int64_t width);

// BF16 [size], as it lies and as float.
Result<const Bf16*> bind_vector(const Checkpoint& checkpoint, std::string_view name, int64_t size);
Result<std::vector<float>> bind_floats(const Checkpoint& checkpoint, std::string_view name,
                                       int64_t size);

// A whole decoder: model.embed_tokens, model.layers.N (norm and attention, norm and mixture),
// model.norm; or backbone.embeddings, backbone.layers.N (norm and one mixer), backbone.norm_f; and
// lm_head (or the embedding again where the two are tied). Families differ beyond that in what the
// config says and in moe_tensor_names().
Result<DecoderWeights> bind_decoder(const ModelConfig& config, const Checkpoint& checkpoint);

// The prefix of a layer's attention or Mamba2 tensors.
std::string mixer_module(const ModelConfig& config, int64_t layer);

// PREFIX.q_proj, .k_proj, .v_proj, .o_proj and, where the config says so, PREFIX.sinks.
Result<AttentionWeights> bind_attention(const Binder& binder, const std::string& prefix);

// PREFIX.in_proj, .conv1d, .A_log, .D, .dt_bias, .norm, .out_proj.
Result<Mamba2Weights> bind_mamba2(const Binder& binder, const std::string& prefix);

}  // namespace rota

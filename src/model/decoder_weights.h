// What a model family binds: where each part of a decoder lies in the checkpoint. Views only, but
// for small vectors that kernels want as floats.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "checkpoint/linear.h"
#include "kernels/matmul.h"
#include "moe/config.h"

namespace rota {

struct AttentionWeights {
  WeightMatrix q;  // [heads * head_dim, hidden]
  WeightMatrix k;  // [kv_heads * head_dim, hidden]
  WeightMatrix v;
  WeightMatrix o;                // [hidden, heads * head_dim]
  std::vector<float> sinks;      // [heads] or none
  const Bf16* q_norm = nullptr;  // [head_dim], for each head, or none
  const Bf16* k_norm = nullptr;
};

struct Mamba2Weights {
  // [z | x B C | dt, hidden], in one matrix or in several, one after another: slices of it.
  std::vector<WeightMatrix> in_proj;
  WeightMatrix out_proj;           // [hidden, inner]
  std::vector<float> conv_weight;  // [kernel, channels of x B C]: the file's turned round
  std::vector<float> conv_bias;
  std::vector<float> a;  // [heads], -exp(A_log)
  std::vector<float> d;
  std::vector<float> dt_bias;
  const Bf16* norm = nullptr;  // [inner]
};

// x += mixer(norm(x)).
struct BlockWeights {
  int64_t layer = 0;           // of the model; some families have two blocks a layer
  const Bf16* norm = nullptr;  // [hidden]
  // The experts are loaded later, as the width plan says.
  std::variant<AttentionWeights, Mamba2Weights, MoeTensorNames> mixer;
};

struct DecoderWeights {
  WeightMatrix embedding;            // [vocab, hidden]
  std::vector<BlockWeights> blocks;  // in the order in which a row meets them
  const Bf16* final_norm = nullptr;  // [hidden]
  WeightMatrix lm_head;              // [vocab, hidden]: the embedding itself where they are tied
  FactorStore factors;               // of quantised matrices
};

}  // namespace rota

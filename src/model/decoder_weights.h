// What a model family binds: where each part of a decoder lies in the checkpoint. Views only.
#pragma once

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

struct DecoderLayerWeights {
  const Bf16* attention_norm = nullptr;  // [hidden]
  AttentionWeights attention;
  const Bf16* moe_norm = nullptr;  // [hidden]
  MoeTensorNames moe;              // loaded later, as the width plan says
};

struct DecoderWeights {
  WeightMatrix embedding;  // [vocab, hidden]
  std::vector<DecoderLayerWeights> layers;
  const Bf16* final_norm = nullptr;  // [hidden]
  WeightMatrix lm_head;              // [vocab, hidden]: the embedding itself where they are tied
  FactorStore factors;               // of quantised matrices
};

}  // namespace rota

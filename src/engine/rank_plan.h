// What each of the ranks that share a model holds: experts, its part of every cut width, bytes.
// Pure: it needs no rank to run, so the plan of a cluster can be read on a laptop.
//
//   ROTA_ASSIGN_OR_RETURN(std::vector<RankPlan> ranks, plan_ranks(inputs));
//   ranks[7].bytes()
// Rank r is data-parallel rank r / TP, tensor-parallel rank r mod TP. Experts: see
// parallel_choice.h. Attention is cut by heads, recurrent layers by groups, lm_head by vocabulary
// (model/tensor_parallel.h), shared experts by their width, all over TP; embedding, routers, latent
// projections and norms are on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "engine/engine_plan.h"
#include "engine/parallel_choice.h"
#include "engine/tensor_census.h"

namespace rota {

struct RankPlan {
  int rank = 0;
  int64_t experts = 0;  // held whole or in part, in each mixture layer
  WidthPlan widths;
  ShardRange intermediate;  // rows of gate and up that it holds of them, logical
  int64_t query_heads = 0;
  int64_t kv_heads = 0;  // more ranks than KV heads: several keep the same one
  KvSpec kv;
  // Bytes of all layers.
  int64_t expert_bytes = 0;
  int64_t copied_bytes = 0;     // of expert_bytes: padded copies in memory of its own
  int64_t padding_bytes = 0;    // of expert_bytes: what would not be there without padding
  int64_t attention_bytes = 0;  // recurrent layers too
  int64_t embedding_bytes = 0;  // embedding and lm_head
  int64_t other_bytes = 0;      // routers, latent projections, shared experts, norms

  int64_t bytes() const { return expert_bytes + attention_bytes + embedding_bytes + other_bytes; }
  bool holds_experts() const { return experts > 0; }
  int64_t intermediate_padded() const {
    return widths.intermediate ? widths.intermediate->padded() : 0;
  }
};

struct RankInputs {
  const ModelConfig* config = nullptr;
  const EnginePlan* engine = nullptr;
  const TensorCensus* census = nullptr;
  MoeOptions moe;
  ParallelChoice parallel;
};

// One of each rank, in order. Fails where plan_widths() does.
Result<std::vector<RankPlan>> plan_ranks(const RankInputs& inputs);

// The one with the most bytes, which the others wait for. There is at least one.
const RankPlan& fullest_rank(const std::vector<RankPlan>& ranks);

}  // namespace rota

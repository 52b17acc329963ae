// How everything but the experts, routed and shared (moe/width_plan.h), is cut over the ranks of a
// tensor-parallel group. Pure: it needs no weight and no rank to run.
//
// Attention: query heads, with the KV heads that they ask; more ranks than KV heads: several ranks
// keep the same one. Mamba2: whole groups of heads, so that a group's norm stays on one rank.
// lm_head: rows of the vocabulary. Norms, routers and the embedding are on every rank: a token
// reads one row of the embedding where it lies in the mapped file, so that whole costs no more than
// a part and saves a sum over ranks.
//
//   ROTA_RETURN_IF_ERROR(check_tensor_parallel(config, 4));
//   const TensorShard shard = tensor_shard(config, 4, 3);
//   make_kv_spec(config_of_rank(config, shard), ...);
#pragma once

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "moe/width_plan.h"

namespace rota {

// What one rank holds; [begin, end) of the model's.
struct TensorShard {
  int rank = 0;
  ShardRange query_heads;
  ShardRange kv_heads;
  ShardRange mamba_groups;
  ShardRange mamba_heads;
  ShardRange vocabulary;  // of lm_head
};

// kInvalidArgument where heads, Mamba2 groups, the vocabulary or blocks of a quantised matrix
// cannot be cut into tp equal parts; says what cannot, and which sizes work.
Status check_tensor_parallel(const ModelConfig& config, int tp);

// Also for sizes that are refused above, for `rota plan`: parts are uneven then, and may be empty.
TensorShard tensor_shard(const ModelConfig& config, int tp, int rank);

// A rank's rows of lm_head.
ShardRange vocabulary_of(const ModelConfig& config, int tp, int rank);

// The model as a rank holds it: heads and groups are its own alone.
ModelConfig config_of_rank(const ModelConfig& config, const TensorShard& shard);

}  // namespace rota

#include "engine/rank_plan.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "model/tensor_parallel.h"

namespace rota {
namespace {

// Part `index` of `parts` of something that is cut in pieces without a remainder lost.
int64_t part_of_bytes(int64_t bytes, const ShardRange& range, int64_t size) {
  return bytes * range.end / size - bytes * range.begin / size;
}

WidthPlan without_padding(WidthPlan plan) {
  plan.experts_in = Extent(plan.experts_in.logical());
  plan.experts_out = Extent(plan.experts_out.logical());
  if (plan.intermediate) plan.intermediate = Extent(plan.intermediate->logical());
  return plan;
}

class RankPlanner {
 public:
  RankPlanner(const RankInputs& inputs, int rank) : in_(inputs), census_(*inputs.census) {
    out_.rank = rank;
    shape_ = inputs.parallel.shape;
    shape_.rank = rank;
    tp_rank_ = rank % shape_.tp;
  }

  Result<RankPlan> plan() && {
    ROTA_RETURN_IF_ERROR(plan_experts());
    plan_attention();
    plan_rest();
    return std::move(out_);
  }

 private:
  Status plan_experts() {
    const MoeConfig& moe = in_.engine->moe.config;
    ROTA_ASSIGN_OR_RETURN(out_.widths,
                          plan_widths({.moe = moe,
                                       .experts = in_.engine->moe.choice.backend,
                                       .transport = in_.parallel.transport,
                                       .parallel = shape_,
                                       .hidden_alignment = in_.moe.hidden_alignment,
                                       .intermediate_alignment = in_.moe.intermediate_alignment}));
    out_.experts = moe.router.experts;
    if (shape_.expert_parallel) {
      ROTA_ASSIGN_OR_RETURN(const ExpertPlaces places,
                            place_experts(moe.router.experts, in_.parallel.of_rank(out_.rank)));
      out_.experts = places.map.local_count();
    }
    const int64_t begin = out_.widths.intermediate_begin;
    out_.intermediate = {.begin = begin, .end = begin};
    if (!out_.widths.intermediate) {
      out_.experts = 0;
      return {};
    }
    out_.intermediate.end += out_.widths.intermediate->logical();
    const ExpertBytes here = expert_bytes(moe, out_.widths, out_.experts);
    const ExpertBytes plain = expert_bytes(moe, without_padding(out_.widths), out_.experts);
    out_.copied_bytes = here.copied.count * census_.moe_layers;
    out_.expert_bytes = here.mapped.count * census_.moe_layers + out_.copied_bytes;
    out_.padding_bytes = out_.expert_bytes - plain.mapped.count * census_.moe_layers;
    return {};
  }

  void plan_attention() {
    const ModelConfig& config = *in_.config;
    const TensorShard shard = tensor_shard(config, shape_.tp, tp_rank_);
    out_.query_heads = shard.query_heads.size();
    out_.kv_heads = shard.kv_heads.size();
    out_.attention_bytes =
        part_of_bytes(census_[ModelPart::kQueries].bytes, shard.query_heads, config.heads) +
        part_of_bytes(census_[ModelPart::kKeyValues].bytes, shard.kv_heads, config.kv_heads);
    out_.attention_bytes += of_tp(ModelPart::kRecurrent);
    out_.kv = make_kv_spec(config_of_rank(config, shard), in_.engine->compute,
                           kernels_for(in_.engine->isa, in_.engine->moe.context.cpu));
  }

  void plan_rest() {
    out_.embedding_bytes = census_[ModelPart::kEmbedding].bytes + of_tp(ModelPart::kLmHead);
    const int64_t shared = in_.config->shared_intermediate;
    if (shared > 0) {
      out_.other_bytes =
          part_of_bytes(census_[ModelPart::kShared].bytes, out_.widths.shared_inside, shared);
    }
    for (const ModelPart part : {ModelPart::kRouter, ModelPart::kLatent, ModelPart::kOther}) {
      out_.other_bytes += census_[part].bytes;
    }
  }

  int64_t of_tp(ModelPart part) const {
    return part_of_bytes(census_[part].bytes, {.begin = tp_rank_, .end = tp_rank_ + 1}, shape_.tp);
  }

  const RankInputs& in_;
  const TensorCensus& census_;
  ParallelShape shape_;
  int tp_rank_ = 0;
  RankPlan out_;
};

}  // namespace

Result<std::vector<RankPlan>> plan_ranks(const RankInputs& inputs) {
  std::vector<RankPlan> ranks;
  for (int rank = 0; rank < inputs.parallel.shape.ranks(); ++rank) {
    ROTA_ASSIGN_OR_RETURN(RankPlan one, RankPlanner(inputs, rank).plan());
    ranks.push_back(std::move(one));
  }
  return ranks;
}

const RankPlan& fullest_rank(const std::vector<RankPlan>& ranks) {
  return *std::max_element(ranks.begin(), ranks.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.bytes() < b.bytes();
  });
}

}  // namespace rota

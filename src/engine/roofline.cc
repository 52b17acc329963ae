#include "engine/roofline.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"

namespace rota {
namespace {

constexpr double kFlopPerWeight = 2;
// A query and a key: 2 an element; the weight and a value: 2 more.
constexpr double kFlopPerHeadElement = 4;
// h = a h + b x, y += c h, for each float32 element of a recurrent state.
constexpr double kFlopPerStateElement = 5;

double as_double(int64_t value) { return static_cast<double>(value); }

// Weights that `share` of all ranks hold together once.
RankWork::Dense dense(std::string_view name, const PartSize& size, double share) {
  return {.name = name,
          .step_bytes = as_double(size.bytes) * share,
          .token_bytes = 0,
          .token_flop = kFlopPerWeight * as_double(size.weights) * share,
          .last_only = false};
}

void add_dense(const RankInputs& in, const RankPlan& rank, RankWork& work) {
  const TensorCensus& census = *in.census;
  const double tp_share = 1.0 / in.parallel.shape.tp;
  const auto share = [](int64_t here, int64_t all) { return as_double(here) / as_double(all); };
  work.dense.push_back(
      {.name = "embedding",
       .token_bytes = as_double(census[ModelPart::kEmbedding].bytes / in.config->vocab)});
  RankWork::Dense attention =
      dense("attention", census[ModelPart::kQueries], share(rank.query_heads, in.config->heads));
  const RankWork::Dense keys =
      dense("attention", census[ModelPart::kKeyValues], share(rank.kv_heads, in.config->kv_heads));
  attention.step_bytes += keys.step_bytes;
  attention.token_flop += keys.token_flop;
  work.dense.push_back(attention);
  work.dense.push_back(dense("recurrent", census[ModelPart::kRecurrent], tp_share));
  work.dense.push_back(dense("router", census[ModelPart::kRouter], 1));
  work.dense.push_back(dense("latent", census[ModelPart::kLatent], 1));
  const int64_t inside = in.config->shared_intermediate;
  const double shared = inside > 0 ? share(rank.widths.shared_inside.size(), inside) : 0;
  work.dense.push_back(dense("shared", census[ModelPart::kShared], shared));
  work.dense.push_back(dense("norms", census[ModelPart::kOther], 1));
  const ModelPart head =
      in.config->tie_word_embeddings ? ModelPart::kEmbedding : ModelPart::kLmHead;
  work.dense.push_back(dense("lm_head", census[head], tp_share));
  work.dense.back().last_only = true;
}

void add_experts(const RankInputs& in, const RankPlan& rank, RankWork& work) {
  const MoeConfig& moe = in.engine->moe.config;
  work.experts = moe.router.experts;
  work.top_k = moe.router.top_k;
  work.experts_here = rank.experts;
  work.moe_layers = in.census->moe_layers;
  const int64_t held = rank.experts * in.census->moe_layers;
  if (!rank.holds_experts() || held == 0) return;
  const WidthPlan& widths = rank.widths;
  const int64_t rows =
      (widths.gated ? 2 : 1) * widths.experts_in.padded() + widths.experts_out.padded();
  work.expert_bytes = as_double(rank.expert_bytes / held);
  work.expert_flop = kFlopPerWeight * as_double(rows * widths.intermediate->padded());
}

void add_attention(const RankInputs& in, const RankPlan& rank, RankWork& work) {
  for (const KvGroup& group : rank.kv.groups) {
    const auto layers = as_double(static_cast<int64_t>(group.layers.size()));
    work.attention.push_back(
        {.window = group.window,
         .token_bytes = layers * as_double(rank.kv.layer_bytes.count) / kKvBlockTokens,
         .token_flop =
             layers * kFlopPerHeadElement * as_double(rank.query_heads * in.config->head_dim)});
  }
  const double state = as_double(rank.kv.state.slot_bytes().count);
  work.state_bytes = 2 * state;
  work.state_flop = kFlopPerStateElement * state / sizeof(float);
}

// Of `here` experts, how many at least one of `tokens` tokens chooses.
double experts_met(const RankWork& work, double tokens) {
  const double chance = as_double(work.top_k) / as_double(work.experts);
  return as_double(work.experts_here) * (1 - std::pow(1 - chance, tokens));
}

void add(TokenCost& cost, const PartCost& part) {
  if (part.bytes == 0 && part.flop == 0) return;
  cost.parts.push_back(part);
  cost.bytes += part.bytes;
  cost.flop += part.flop;
}

PartCost experts_cost(const RankWork& work, double tokens) {
  const double layers = as_double(work.moe_layers);
  const double chosen_here =
      as_double(work.top_k) * as_double(work.experts_here) / as_double(work.experts);
  return {.name = "experts",
          .bytes = layers * experts_met(work, tokens * work.dp) * work.expert_bytes / tokens,
          .flop = layers * work.dp * chosen_here * work.expert_flop};
}

// Weights and states, which know no positions. A prompt has its last token's logits alone.
TokenCost position_free_cost(const RankWork& work, double tokens, bool prompt) {
  TokenCost cost;
  for (const RankWork::Dense& part : work.dense) {
    if (prompt && part.last_only) continue;
    add(cost, {.name = part.name,
               .bytes = part.step_bytes / tokens + part.token_bytes,
               .flop = part.token_flop});
    if (part.name == "router") add(cost, experts_cost(work, tokens));
  }
  add(cost, {.name = "state",
             .bytes = work.state_bytes / (prompt ? tokens : 1),
             .flop = work.state_flop});
  return cost;
}

double seen(const RankWork::Attention& group, int64_t position) {
  return as_double(group.window == 0 ? position : std::min(position, group.window));
}

// Positions that tokens 1 .. length see, on average.
double mean_seen(const RankWork::Attention& group, int64_t length) {
  const int64_t growing = group.window == 0 ? length : std::min(length, group.window);
  const double grown = as_double(growing) * as_double(growing + 1) / 2;
  const double after = as_double(length - growing) * as_double(growing);
  return (grown + after) / as_double(length);
}

// Positions that a prompt's steps read of the cache, each once a step, all steps together.
double positions_read(const RankWork::Attention& group, const StepShape& step) {
  double sum = 0;
  for (int64_t begin = 0; begin < step.tokens_of_sequence; begin += step.tokens) {
    const int64_t end = std::min(begin + step.tokens, step.tokens_of_sequence);
    const int64_t reach = group.window == 0 ? end : std::min(end, end - begin + group.window - 1);
    sum += as_double(reach);
  }
  return sum;
}

}  // namespace

RankWork rank_work(const RankInputs& inputs, const RankPlan& rank) {
  RankWork work;
  work.dp = inputs.parallel.shape.dp;
  add_dense(inputs, rank, work);
  add_experts(inputs, rank, work);
  add_attention(inputs, rank, work);
  return work;
}

TokenCost decode_cost(const RankWork& work, const StepShape& step) {
  TokenCost cost = position_free_cost(work, as_double(step.tokens), false);
  PartCost cache{.name = "kv_cache"};
  for (const RankWork::Attention& group : work.attention) {
    cache.bytes += group.token_bytes * seen(group, step.tokens_of_sequence);
    cache.flop += group.token_flop * seen(group, step.tokens_of_sequence);
  }
  add(cost, cache);
  return cost;
}

TokenCost prompt_cost(const RankWork& work, const StepShape& step) {
  const StepShape chunk{.tokens = std::min(step.tokens, step.tokens_of_sequence),
                        .tokens_of_sequence = step.tokens_of_sequence};
  const double length = as_double(chunk.tokens_of_sequence);
  const double steps = std::ceil(length / as_double(chunk.tokens));
  TokenCost cost = position_free_cost(work, length / steps, true);
  PartCost cache{.name = "kv_cache"};
  for (const RankWork::Attention& group : work.attention) {
    cache.bytes += group.token_bytes * positions_read(group, chunk) / length;
    cache.flop += group.token_flop * mean_seen(group, chunk.tokens_of_sequence);
  }
  add(cost, cache);
  return cost;
}

RateBound rate_bound(const TokenCost& cost, const MachineSpeed& each_rank, int dp) {
  const double reading =
      each_rank.bytes_per_second > 0 ? cost.bytes / each_rank.bytes_per_second : 0;
  const double computing =
      each_rank.flop_per_second > 0 ? cost.flop / each_rank.flop_per_second : 0;
  const double seconds = std::max(reading, computing);
  if (seconds == 0) return {};
  return {.tokens_per_second = dp / seconds, .by_memory = reading >= computing};
}

}  // namespace rota

// A plan as JSON, for programs.
#include "engine/engine_options.h"
#include "rota/model_plan.h"

namespace rota {
namespace {

using Json = nlohmann::ordered_json;

Json widths_of(const ModelPlan& plan) {
  Json widths = Json::array();
  for (const WidthStep& step : plan.ranks.front().widths.steps()) {
    widths.push_back({{"name", step.name},
                      {"logical", step.width.logical()},
                      {"padded", step.width.padded()},
                      {"action", to_string(step.action)},
                      {"reason", step.reason},
                      {"padded_by", step.padded_by},
                      {"cut_by", step.cut_by}});
  }
  return widths;
}

Json ranks_of(const ModelPlan& plan) {
  Json ranks = Json::array();
  for (const RankPlan& rank : plan.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"experts", rank.experts},
                     {"intermediate",
                      {{"begin", rank.intermediate.begin},
                       {"end", rank.intermediate.end},
                       {"padded", rank.intermediate_padded()}}},
                     {"query_heads", rank.query_heads},
                     {"kv_heads", rank.kv_heads},
                     {"expert_bytes", rank.expert_bytes},
                     {"copied_bytes", rank.copied_bytes},
                     {"padding_bytes", rank.padding_bytes},
                     {"attention_bytes", rank.attention_bytes},
                     {"embedding_bytes", rank.embedding_bytes},
                     {"other_bytes", rank.other_bytes},
                     {"bytes", rank.bytes()},
                     {"kv_bytes_per_token", rank.kv.bytes_per_token().count}});
  }
  return ranks;
}

Json warnings_of(const ModelPlan& plan) {
  Json warnings = Json::array();
  for (const PlanWarning& one : plan.warnings) {
    warnings.push_back(
        {{"kind", one.kind}, {"what", one.what}, {"advice", one.advice}, {"ranks", one.ranks}});
  }
  return warnings;
}

Json cost_of(const TokenCost& cost, const ModelPlan& plan) {
  Json parts = Json::object();
  for (const PartCost& part : cost.parts) {
    parts[std::string(part.name)] = {{"bytes", part.bytes}, {"flop", part.flop}};
  }
  Json out = {{"bytes", cost.bytes},
              {"flop", cost.flop},
              {"flop_per_byte", cost.intensity()},
              {"parts", std::move(parts)}};
  const RateBound bound = rate_bound(cost, plan.roofline.speed, plan.parallel.shape.dp);
  if (bound.tokens_per_second > 0) {
    out["tokens_per_second"] = bound.tokens_per_second;
    out["bound_by"] = bound.by_memory ? "memory" : "arithmetic";
  }
  return out;
}

Json roofline_of(const ModelPlan& plan) {
  const RooflinePlan& roofline = plan.roofline;
  Json out = {{"context", roofline.context},
              {"batch", roofline.batch},
              {"prompt_chunk", roofline.prompt_chunk},
              {"decode", cost_of(roofline.alone, plan)},
              {"decode_batch", cost_of(roofline.batched, plan)},
              {"prompt", cost_of(roofline.prompt, plan)}};
  if (roofline.speed.bytes_per_second > 0) {
    out["bandwidth_gb_per_second"] = roofline.speed.bytes_per_second * 1e-9;
  }
  if (roofline.speed.flop_per_second > 0) {
    out["peak_gflop_per_second"] = roofline.speed.flop_per_second * 1e-9;
  }
  out["measured"] = roofline.measured;
  return out;
}

// What the costs above are made of: for who asks about other steps.
Json work_of(const RankWork& work) {
  Json dense = Json::array(), attention = Json::array();
  for (const RankWork::Dense& part : work.dense) {
    dense.push_back({{"name", part.name},
                     {"step_bytes", part.step_bytes},
                     {"token_bytes", part.token_bytes},
                     {"token_flop", part.token_flop},
                     {"last_only", part.last_only}});
  }
  for (const RankWork::Attention& group : work.attention) {
    attention.push_back({{"window", group.window},
                         {"token_bytes", group.token_bytes},
                         {"token_flop", group.token_flop}});
  }
  return {{"dense", std::move(dense)},         {"attention", std::move(attention)},
          {"experts_here", work.experts_here}, {"expert_bytes", work.expert_bytes},
          {"expert_flop", work.expert_flop},   {"state_bytes", work.state_bytes},
          {"state_flop", work.state_flop}};
}

Json transfer_of(const TransferSize& size) {
  return {{"out_bytes", size.out.count},
          {"home_bytes", size.home.count},
          {"pass_bytes", size.pass.count},
          {"group_bytes", size.group.count},
          {"sum_bytes", size.sum.count}};
}

Json parallel_of(const ModelPlan& plan) {
  const ParallelShape& shape = plan.parallel.shape;
  return {{"ranks", shape.ranks()},
          {"tensor_parallel_size", shape.tp},
          {"data_parallel_size", shape.dp},
          {"expert_parallel", shape.expert_parallel},
          {"expert_placement_strategy",
           plan.parallel.placement == ExpertPlacement::kLinear ? "linear" : "round_robin"},
          {"experts_move", plan.parallel.experts_move},
          {"redundant_experts", plan.parallel.redundant_experts}};
}

Json kv_of(const ModelPlan& plan) {
  Json out = {{"bytes_per_token", plan.kv.bytes_per_token().count},
              {"page_bytes", plan.kv.page_bytes.count},
              {"tokens_that_fit", plan.budget.tokens},
              {"cache_bytes", plan.budget.bytes},
              {"max_model_len", plan.budget.max_model_len},
              {"ranks_here", plan.ranks_here}};
  if (plan.budget.slots > 0) {
    out["state_bytes"] = plan.kv.state.slot_bytes().count;
    out["max_num_seqs"] = plan.budget.max_num_seqs;
    out["snapshots"] = plan.budget.snapshots;
  }
  if (!plan.no_budget.ok()) out["problem"] = plan.no_budget.message();
  return out;
}

}  // namespace

Json plan_to_json(const ModelPlan& plan) {
  Json refused = Json::array();
  for (const BackendRefusal& one : plan.engine.moe.choice.refused) {
    refused.push_back({{"backend", one.backend}, {"reason", one.reason}});
  }
  return {{"model", plan.name},
          {"model_type", to_string(plan.config.architecture)},
          {"layers", plan.config.layers},
          {"moe_layers", plan.census.moe_layers},
          {"experts", plan.config.experts},
          {"top_k", plan.config.top_k},
          {"backend", plan.engine.moe.choice.backend->name()},
          {"refused", std::move(refused)},
          {"prepare_finalize", to_string(plan.parallel.transport)},
          {"parallel", parallel_of(plan)},
          {"widths", widths_of(plan)},
          {"ranks", ranks_of(plan)},
          {"warnings", warnings_of(plan)},
          {"weights",
           {{"bytes", plan.weight_bytes},
            {"counted_from", plan.weights_found ? "tensor headers" : "config.json"},
            {"mapped_bytes", plan.mapped_bytes},
            {"copied_bytes", plan.copied_bytes}}},
          {"workspace_bytes", plan.engine.workspace_bytes},
          {"kv", kv_of(plan)},
          {"transfer", transfer_of(plan.transfer)},
          {"work", work_of(plan.roofline.work)},
          {"roofline", roofline_of(plan)}};
}

}  // namespace rota

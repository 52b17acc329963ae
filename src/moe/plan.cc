#include "moe/plan.h"

#include <fmt/format.h>

#include <utility>

#include "moe/routing.h"

namespace rota {
namespace {

std::string describe_rank(const MoePlan& plan) {
  const ParallelShape& shape = plan.parallel.shape;
  const std::string rank = fmt::format("; rank {} of {} (data {} x tensor {}): ", shape.rank,
                                       shape.ranks(), shape.dp, shape.tp);
  if (shape.expert_parallel) {
    const std::string movable =
        plan.slots ? fmt::format(" in {} slots that change hands", plan.slots->slots()) : "";
    return rank + fmt::format("{} of {} experts{}, {}", plan.map.local_count(),
                              plan.config.router.experts, movable,
                              to_string(plan.parallel.placement));
  }
  if (!plan.widths.intermediate) return rank + "no part of an expert";
  const int64_t begin = plan.widths.intermediate_begin;
  return rank + fmt::format("rows {} to {} of each expert", begin,
                            begin + plan.widths.intermediate->logical() - 1);
}

}  // namespace

Result<ExpertPlaces> place_experts(int64_t experts, const MoeParallel& parallel) {
  const ParallelShape& shape = parallel.shape;
  if (!shape.expert_parallel) return ExpertPlaces{.map = ExpertMap::whole(experts)};
  const int64_t most = experts * (shape.ranks() - 1);
  if (parallel.redundant_experts > most) {
    return invalid_argument(
        "--num-redundant-experts: {} is more than {}: a copy of each of {} experts on every one of "
        "{} ranks",
        parallel.redundant_experts, most, experts, shape.ranks());
  }
  ExpertPlaces places;
  ROTA_ASSIGN_OR_RETURN(places.map, ExpertMap::make(experts + parallel.redundant_experts,
                                                    shape.ranks(), shape.rank, parallel.placement));
  if (parallel.experts_move) {
    ROTA_ASSIGN_OR_RETURN(places.slots, ExpertSlots::first(places.map, experts));
  }
  return places;
}

Result<MoePlan> plan_moe(const MoeConfig& config, const MoeOptions& options,
                         const BackendContext& context, const MoeParallel& parallel) {
  ROTA_RETURN_IF_ERROR(check_router(config.router));
  MoePlan plan;
  plan.config = config;
  plan.context = context;
  plan.parallel = parallel;
  ROTA_ASSIGN_OR_RETURN(plan.choice, select_backend(config, context, options.backend));
  ROTA_ASSIGN_OR_RETURN(plan.widths,
                        plan_widths({.moe = config,
                                     .experts = plan.choice.backend,
                                     .transport = parallel.transport,
                                     .parallel = parallel.shape,
                                     .hidden_alignment = options.hidden_alignment,
                                     .intermediate_alignment = options.intermediate_alignment}));
  ROTA_ASSIGN_OR_RETURN(ExpertPlaces places, place_experts(config.router.experts, parallel));
  plan.map = places.map;
  plan.slots = std::move(places.slots);
  if (plan.widths.intermediate) {
    plan.layer_bytes = expert_bytes(config, plan.widths, plan.map.local_count());
  }
  return plan;
}

std::string describe(const MoePlan& plan) {
  std::string text = fmt::format(
      "experts {}, prepare/finalize {}, hidden {}, intermediate {}", plan.choice.describe(),
      to_string(plan.parallel.transport), to_string(plan.widths.experts_in),
      plan.widths.intermediate ? to_string(*plan.widths.intermediate) : "none (an empty shard)");
  if (plan.config.latent > 0) {
    text += fmt::format(", latent in a model of {}", plan.config.hidden);
  }
  if (plan.config.shared_intermediate > 0) {
    text += fmt::format(", shared expert {}", plan.config.shared_intermediate);
  }
  if (plan.parallel.shape.ranks() > 1) text += describe_rank(plan);
  return text;
}

}  // namespace rota

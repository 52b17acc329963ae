// Everything that is decided about a model's mixture layers before a weight is read: backend,
// prepare/finalize, widths, experts, bytes; of one rank of those that share the model. Pure: `rota
// plan` prints it, the model is built from it.
//
//   ROTA_ASSIGN_OR_RETURN(MoePlan plan, plan_moe(moe_config(config), options, context, parallel));
//   log::info("mixture layers: {}", describe(plan));
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "moe/config.h"
#include "moe/expert_map.h"
#include "moe/expert_slots.h"
#include "moe/experts.h"
#include "moe/options.h"
#include "moe/select_backend.h"
#include "moe/width_plan.h"

namespace rota {

// One of the ranks that share a model, and how tokens reach the experts of the others.
struct MoeParallel {
  ParallelShape shape = {};
  Transport transport = Transport::kNoDpEp;
  ExpertPlacement placement = ExpertPlacement::kLinear;
  bool experts_move = false;      // between ranks, while they serve: experts lie in slots
  int64_t redundant_experts = 0;  // of a layer: slots beyond one for each expert

  // Else every rank holds a part of each expert.
  bool experts_whole() const { return shape.shards() == 1; }
};

struct MoePlan {
  MoeConfig config;
  BackendContext context;
  BackendChoice choice;
  MoeParallel parallel;
  WidthPlan widths;
  ExpertMap map =
      ExpertMap::whole(1);           // of this rank: deals experts, or slots where there are some
  std::optional<ExpertSlots> slots;  // how all layers begin, where experts move
  ExpertBytes layer_bytes;           // of one layer, on this rank
};

// Who lies where when layers begin, of one of the ranks. Fails where they have not so many slots.
struct ExpertPlaces {
  ExpertMap map = ExpertMap::whole(1);
  std::optional<ExpertSlots> slots = {};
  // Of a local number.
  int64_t expert(int64_t local) const {
    const int64_t at = map.global(local);
    return slots ? slots->expert(at) : at;
  }
};
Result<ExpertPlaces> place_experts(int64_t experts, const MoeParallel& parallel);

Result<MoePlan> plan_moe(const MoeConfig& config, const MoeOptions& options,
                         const BackendContext& context, const MoeParallel& parallel = {});

// "experts cpu_mxfp4_bf16, prepare/finalize no_dp_ep, hidden 2880 -> 3072, intermediate 2880"; of
// several ranks: "...; rank 3 of 8 (data 8 x tensor 1): 16 of 128 experts, linear"
std::string describe(const MoePlan& plan);

}  // namespace rota

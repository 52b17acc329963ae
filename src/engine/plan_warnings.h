// What a plan wastes, and what to do about it: padding in weights and on the wire, ranks without
// work, shards that are uneven because a quantisation block is never cut, flags that do nothing.
//
//   for (const PlanWarning& w : plan_warnings(inputs, ranks)) print(w.what, w.advice);
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/rank_plan.h"

namespace rota {

struct PlanWarning {
  std::string_view kind;   // "rounded_weights": the words of the JSON
  std::string what;        // with numbers
  std::string advice;      // what to do
  std::vector<int> ranks;  // whom it concerns; empty: all
};

std::vector<PlanWarning> plan_warnings(const RankInputs& inputs, std::span<const RankPlan> ranks);

// "0-6, 8" of ascending numbers.
std::string list_ranks(std::span<const int> ranks);

}  // namespace rota

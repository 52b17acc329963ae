// Where a layer's experts should lie so that all ranks have as much to do: copies for those with
// most tokens, then exchanges between the fullest rank and the others until it is no fuller than
// the mean, or no exchange helps. Begins with where they lie now, so few move.
//
// Pure and the same on every machine: ranks that know the same tokens decide the same.
//
//   ExpertSlots better = balance_experts(map, slots, tokens);        // tokens [experts], of all ranks
//   load_imbalance(map, better, tokens)                              // 1.03: the fullest rank over the mean
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/expert_map.h"
#include "moe/expert_slots.h"

namespace rota {

ExpertSlots balance_experts(const ExpertMap& map, const ExpertSlots& now,
                            std::span<const int64_t> tokens);

// What each rank has to do, where an expert's copies share its tokens evenly.
std::vector<double> rank_loads(const ExpertMap& map, const ExpertSlots& slots,
                               std::span<const int64_t> tokens);

// The largest over the mean; of nothing: 1.
double load_imbalance(std::span<const double> loads);
double load_imbalance(const ExpertMap& map, const ExpertSlots& slots,
                      std::span<const int64_t> tokens);

}  // namespace rota

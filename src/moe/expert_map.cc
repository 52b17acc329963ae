#include "moe/expert_map.h"

#include <algorithm>

#include "base/check.h"

namespace rota {

std::string_view to_string(ExpertPlacement placement) {
  return placement == ExpertPlacement::kLinear ? "linear" : "round_robin";
}

Result<ExpertMap> ExpertMap::make(int64_t experts, int ranks, int rank, ExpertPlacement placement) {
  if (experts < 1 || ranks < 1 || rank < 0 || rank >= ranks) {
    return invalid_argument(
        "expert map: {} experts over {} ranks, rank {}: expected at least one expert, one rank, "
        "and "
        "0 <= rank < ranks",
        experts, ranks, rank);
  }
  return ExpertMap(experts, ranks, rank, placement);
}

ExpertMap ExpertMap::none(int64_t experts) {
  const auto rank = static_cast<int>(experts);  // one more than there are experts for
  return {experts, rank + 1, rank, ExpertPlacement::kLinear};
}

int64_t ExpertMap::count_of(int rank) const {
  return experts_ / ranks_ + (rank < experts_ % ranks_ ? 1 : 0);
}

int64_t ExpertMap::first_of(int rank) const {
  return rank * (experts_ / ranks_) + std::min<int64_t>(rank, experts_ % ranks_);
}

int ExpertMap::owner(int64_t expert) const {
  ROTA_CHECK(0 <= expert && expert < experts_, "an expert's number is in [0, experts)");
  if (placement_ == ExpertPlacement::kRoundRobin) return static_cast<int>(expert % ranks_);
  const int64_t larger = experts_ / ranks_ + 1;  // of the first `experts mod ranks` ranks
  const int64_t on_larger = larger * (experts_ % ranks_);
  if (expert < on_larger) return static_cast<int>(expert / larger);
  return static_cast<int>(experts_ % ranks_ + (expert - on_larger) / (experts_ / ranks_));
}

std::optional<int64_t> ExpertMap::local(int64_t expert) const {
  if (expert < 0 || expert >= experts_ || owner(expert) != rank_) return std::nullopt;
  return local_at_owner(expert);
}

int64_t ExpertMap::local_at_owner(int64_t expert) const {
  if (placement_ == ExpertPlacement::kRoundRobin) return expert / ranks_;
  return expert - first_of(owner(expert));
}

int64_t ExpertMap::global(int64_t local) const {
  ROTA_CHECK(0 <= local && local < local_count(), "a local number is in [0, local_count())");
  if (placement_ == ExpertPlacement::kRoundRobin) return local * ranks_ + rank_;
  return first_of(rank_) + local;
}

}  // namespace rota

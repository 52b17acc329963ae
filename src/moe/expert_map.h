// Which rank owns which expert, and under which local number.
//
// The first `experts mod ranks` ranks hold one more. linear: consecutive experts on one rank;
// round_robin: expert e on rank e mod ranks. Where experts may be moved it deals the slots that
// they lie in (expert_slots.h), which stay: an expert's number is then a slot's. An expert that is
// elsewhere has no local number: the answer is nothing, never -1 (R8).
//
//   if (const auto local = map.local(expert)) use(weights[*local]);
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace rota {

enum class ExpertPlacement { kLinear, kRoundRobin };
std::string_view to_string(ExpertPlacement placement);  // "round_robin"

class ExpertMap {
 public:
  // All experts here.
  static ExpertMap whole(int64_t experts) { return {experts, 1, 0, ExpertPlacement::kLinear}; }
  // No expert here: what a rank holds whose shard of every expert is empty.
  static ExpertMap none(int64_t experts);
  // 0 <= rank < ranks; ranks need not divide the experts, nor be fewer.
  static Result<ExpertMap> make(int64_t experts, int ranks, int rank, ExpertPlacement placement);

  int64_t experts() const { return experts_; }
  int ranks() const { return ranks_; }
  int64_t local_count() const { return count_of(rank_); }
  int64_t count_of(int rank) const;
  int owner(int64_t expert) const;
  std::optional<int64_t> local(int64_t expert) const;  // nothing: not here, or no expert at all
  int64_t local_at_owner(int64_t expert) const;        // 0 <= expert < experts()
  int64_t global(int64_t local) const;                 // 0 <= local < local_count()

 private:
  ExpertMap(int64_t experts, int ranks, int rank, ExpertPlacement placement)
      : experts_(experts), ranks_(ranks), rank_(rank), placement_(placement) {}
  int64_t first_of(int rank) const;  // linear

  int64_t experts_;
  int ranks_;
  int rank_;
  ExpertPlacement placement_;
};

}  // namespace rota

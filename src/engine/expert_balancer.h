// --enable-eplb: every so many steps all ranks compare how much their experts had to do, and move or copy
// popular ones to ranks that had less. Answers stay bit for bit the same: a token's experts compute
// the same wherever they lie, and are added up in the same order (moe/prepare_finalize.h).
//
// Contract: after_step() is called by all ranks after each step that all ran, and is collective
// where something is due, which is at the same steps. All decide the same from the same counts
// (moe/balance_experts.h). One layer changes after a step, so that no pause is long. placement() is
// part of the next step's header: a rank that holds other experts than the rest believe is an error
// with names.
//
//   ExpertBalancer balancer(model.mixtures(), control, team, {.window = 1000, .interval = 3000});
//   ... a step ...
//   ROTA_RETURN_IF_ERROR(balancer.after_step());
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "engine/engine_client.h"
#include "moe/weights.h"
#include "platform/thread_team.h"

namespace rota {

struct BalancerOptions {
  int64_t window = 1000;    // steps whose load is looked at: the last of each interval
  int64_t interval = 3000;  // steps between two looks
};

class ExpertBalancer {
 public:
  // layers: whose experts lie in slots, dealt alike. All of it outlives the balancer.
  ExpertBalancer(std::vector<MoeLayer*> layers, Communicator& control, ThreadTeam& team,
                 const BalancerOptions& options);

  // Fails on all ranks if one cannot take over its experts, or does not come.
  Status after_step();

  uint64_t placement() const { return placement_; }  // digest of who lies where, in all layers
  const ExpertBalance& stats() const { return stats_; }

 private:
  struct Change {
    size_t layer = 0;
    ExpertSlots slots;
  };

  // Tokens of a window, layer by layer.
  struct Counts {
    std::vector<int64_t> of_expert;  // [layers * experts]
    std::vector<int64_t> of_rank;    // [layers * ranks]
  };

  void begin_window();
  // The end of a window, in order.
  Status look();
  Result<Counts> gather_counts();
  void measure(const Counts& counts);
  void decide(const Counts& counts);
  // What was decided, a layer at a time; the last first.
  Status change_one();
  // After a layer has changed: placement() and stats().held.
  void seal();
  std::vector<std::vector<int32_t>> held(const ExpertSlots& slots) const;

  const ExpertMap& map() const { return layers_.front()->map(); }
  int64_t experts() const { return layers_.front()->slots()->experts(); }
  std::span<const int64_t> of_layer(const std::vector<int64_t>& counts, size_t layer) const {
    const size_t each = counts.size() / layers_.size();
    return std::span(counts).subspan(layer * each, each);
  }

  std::vector<MoeLayer*> layers_;
  Communicator* control_;
  ThreadTeam* team_;
  BalancerOptions options_;
  std::vector<std::vector<int32_t>> slots_of_rank_;  // in the order of its local numbers
  int64_t steps_ = 0;                                // of this interval
  std::vector<int64_t> at_start_;  // [layers * local slots]: served before the window
  std::vector<Change> changes_;    // still to come
  uint64_t placement_ = 0;
  ExpertBalance stats_;
};

}  // namespace rota

// What every rank says at the beginning of every step, and all of them check: a rank that is
// elsewhere is an error with names, on all ranks, and never a hang.
//
// Contract: exchange() is collective. After it every rank knows what all others will do, so that
// all take the same branch. kInternal: two ranks are not at the same step, did not load the same,
// do not have experts in the same places, or (of one tensor-parallel group) do not run the same
// tokens; the message names both sides. Does not allocate.
//
//   ROTA_RETURN_IF_ERROR(headers.exchange({.step = 7, .kind = StepKind::kWork, .tokens = 5}));
//   if (headers.any(StepKind::kWork)) core.run_step({headers.tokens_of_group(), headers.decodes()});
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace rota {

enum class StepKind : int64_t {
  kPark,   // nothing to do, nothing to say: if that holds for all, they park
  kDummy,  // no tokens; takes part in the step of those that have some
  kWork,
  kStop,  // rank 0 alone: the engine ends
};
std::string_view to_string(StepKind kind);

struct StepHeader {
  int64_t step = 0;
  StepKind kind = StepKind::kPark;
  int64_t tokens = 0;
  bool decodes = true;        // they are one for each of its sequences; true with none
  int64_t message_bytes = 0;  // for rank 0
  uint64_t loaded = 0;        // hash of what this rank has loaded, and how (load_agreement.h)
  uint64_t placement = 0;     // likewise of where experts lie, where they move (expert_balancer.h)
};
std::string describe(const StepHeader& header);

class StepHeaders {
 public:
  // tp: ranks of one tensor-parallel group. control: outlives this, and carries nothing of the
  // model.
  StepHeaders(Communicator& control, int tp);

  // bytes_to [ranks]: of rank 0, what it has for each rank; of others empty.
  Status exchange(const StepHeader& mine, std::span<const int64_t> bytes_to);

  // Of the step that was exchanged last.
  const StepHeader& of(int rank) const { return headers_[static_cast<size_t>(rank)]; }
  std::span<const int64_t> tokens_of_group() const { return tokens_; }  // [ranks / tp]
  bool decodes() const;                                                 // on every rank
  bool any(StepKind kind) const;
  bool all(StepKind kind) const;
  bool has_messages() const;
  bool first_has_messages() const { return first_has_messages_; }  // rank 0, for any rank
  // Messages that this rank gets in this step: [ranks], in bytes.
  std::span<const int64_t> bytes_from() const { return bytes_from_; }

 private:
  Status check() const;

  Communicator* control_;
  int tp_;
  std::vector<int64_t> mine_;   // as it travels
  std::vector<int64_t> words_;  // everybody's
  std::vector<int64_t> begin_;  // of each rank's piece, in bytes
  std::vector<StepHeader> headers_;
  std::vector<int64_t> tokens_;
  std::vector<int64_t> bytes_from_;
  bool first_has_messages_ = false;
};

}  // namespace rota

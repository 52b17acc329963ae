// Prepare and finalize: what happens to tokens before and after the experts, a name of the
// literature for each kind.
//
//   no_dp_ep                 all tokens are here already and stay here
//   allgather_reducescatter  every rank gets all tokens ("naive")
//   alltoallv                a token goes to the ranks of its experts, once to each
//   low_latency              a token is put into fixed slots of its experts, one-sided
// One file a kind, under prepare_finalize/. Each states its activation format and which hidden
// sizes it takes (width_plan.h); a row travels in the bits that the experts consume, and comes back
// in float32.
//
//   kind.start_dispatch({hidden, topk, tokens_of_rank});   // tokens travel; shared experts meanwhile
//   ROTA_ASSIGN_OR_RETURN(ExpertsInput input, kind.finish_dispatch());
//   ROTA_ASSIGN_OR_RETURN(ExpertsOutput output, experts.run({... input ...}));
//   ROTA_ASSIGN_OR_RETURN(Reduced<float> routed, kind.combine(output, out));
// combine() sums a token's experts, weighted, in slot order, in float32, at home, into a buffer
// that is as wide as the experts' output (R4), never as the activations that went in. Where experts
// are whole, the bits do not depend on the number of ranks, the kind, or what other ranks compute.
// Where they are cut, shares are added in rank order. Every rank takes part in every pass, also
// with no token. After make() nothing is allocated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/communicator.h"
#include "kernels/kernels.h"
#include "moe/expert_map.h"
#include "moe/experts.h"
#include "moe/routing.h"
#include "moe/width_plan.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

enum class ActivationFormat { kStandard, kBatched };

struct DispatchArgs {
  MatrixView<const float> hidden;           // [T, plan.dispatch.logical]: this rank's tokens
  TopK topk;                                // [T, k] of them; ids are those that the map deals
  std::span<const int64_t> tokens_of_rank;  // [ranks] of this pass; [rank] = T
};

// What this rank's experts shall see.
struct ExpertsInput {
  MatrixView<const float> hidden;  // [tokens or places, plan.dispatch.logical]
  TopK topk = {};                  // standard: global ids, no weights
  std::optional<BatchedTokens> batched = {};
};

// Ranks are those of `communicator`; each gives the same but for its own map.
struct PrepareFinalizeSizing {
  Transport transport = Transport::kNoDpEp;
  const WidthPlan* plan = nullptr;
  const MoeConfig* config = nullptr;
  ExpertMap map = ExpertMap::whole(1);
  bool experts_whole = true;         // else every rank holds a part of each
  Compute compute = Compute::kBf16;  // what the experts round their inputs to: what travels
  int64_t max_tokens = 1;            // of one rank in a pass
  int ranks = 1;                     // communicator->ranks()
  const KernelTable* kernels = nullptr;
  ThreadTeam* team = nullptr;
  Communicator* communicator = nullptr;

  // Experts of the rank that has most of them, and of its slots at most, those of one token.
  int64_t most_experts() const { return (map.experts() + map.ranks() - 1) / map.ranks(); }
  int64_t most_slots() const { return std::min(config->router.top_k, most_experts()); }
};

class PrepareFinalize {
 public:
  virtual ~PrepareFinalize() = default;
  virtual std::string_view name() const = 0;
  virtual ActivationFormat format() const = 0;

  virtual Status start_dispatch(const DispatchArgs& args) = 0;
  virtual Result<ExpertsInput> finish_dispatch() = 0;
  // out [T, plan.cut]; weights: those of start_dispatch(), which are alive until now.
  virtual Result<Reduced<float>> combine(const ExpertsOutput& experts, MatrixView<float> out) = 0;
};

// What ExpertsInput has at most, so what an experts backend is sized for, and memory. Pure: needs
// no communicator, kernels or team.
struct PrepareFinalizeNeeds {
  int64_t tokens = 0;  // that come to this rank
  int64_t places = 0;  // batched: of one expert
  Bytes workspace;
};
PrepareFinalizeNeeds prepare_finalize_needs(const PrepareFinalizeSizing& sizing);

// Collective: every rank makes the same kind at the same time.
Result<std::unique_ptr<PrepareFinalize>> make_prepare_finalize(const PrepareFinalizeSizing& sizing);

}  // namespace rota

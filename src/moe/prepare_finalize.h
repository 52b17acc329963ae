// Prepare and finalize: what happens to tokens before and after the experts, a name of the
// literature for each kind.
//
//   dispatch()  gives the experts the rows they shall see
//   combine()   sums a token's experts, weighted, in slot order, in float32, into a buffer that is
//               as wide as the experts' output (R4), never as the activations that went in; what
//               the experts of other ranks add to it is still owed (R6)
// One file a kind, under prepare_finalize/.
#pragma once

#include <string_view>

#include "comm/partial.h"
#include "kernels/kernels.h"
#include "moe/experts.h"
#include "moe/routing.h"
#include "moe/width_plan.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

struct DispatchedTokens {
  MatrixView<const float> hidden;  // [tokens, plan.dispatch.logical]
  TopK topk;
};

struct CombineArgs {
  const ExpertsOutput* experts = nullptr;
  TopK topk;
  MatrixView<float> out;  // [T, plan.cut]
  const KernelTable* kernels = nullptr;
  ThreadTeam* team = nullptr;
};

class PrepareFinalize {
 public:
  virtual ~PrepareFinalize() = default;
  virtual std::string_view name() const = 0;
  virtual DispatchedTokens dispatch(MatrixView<const float> hidden, const TopK& topk) const = 0;
  virtual Partial<float> combine(const CombineArgs& args) const = 0;
};

// Stateless, lives for ever.
const PrepareFinalize& prepare_finalize_for(Transport transport);

}  // namespace rota

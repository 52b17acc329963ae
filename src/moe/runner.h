// One mixture layer after another: route, dispatch, experts, combine, reduce; into the latent width
// before and out of it behind, where there is one; plus what the shared expert makes of the same input.
// Follows the WidthPlan and decides nothing. All layers of a plan share one runner and its workspace.
//
//   ROTA_ASSIGN_OR_RETURN(MoeRunner runner, MoeRunner::make(plan, kernels, team, max_tokens));
//   ROTA_RETURN_IF_ERROR(runner.run(layer, normed, out));
// hidden, out [T, H] float32, two matrices, hidden already normed, T <= max_tokens. A row of `out`
// depends on its row of `hidden` alone, bit for bit: not on T, other rows, threads or padding. run()
// does not allocate unless it fails; it fails only for weights found damaged, or with its communicator.
// The ranks of a communicator run the same layers on the same rows, each with its own experts or shards.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "comm/communicator.h"
#include "kernels/kernels.h"
#include "moe/dense.h"
#include "moe/experts.h"
#include "moe/gate.h"
#include "moe/plan.h"
#include "moe/prepare_finalize.h"
#include "moe/weights.h"
#include "platform/memory.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

// Prefills of more tokens than fit run in passes. A pass reads every active expert's weights once,
// so this is as large as a few hundred MB of resident memory allow; 512 tokens of gpt-oss need 59
// MB.
inline constexpr Bytes kMoeWorkspace{int64_t{128} << 20};

// For tests and `rota score --dump router`: sees the routing of each call.
class MoeTrace {
 public:
  virtual ~MoeTrace() = default;
  virtual void routed(const TopK& topk) = 0;  // [T, k], valid during the call
  // [T, H] each, where there is a shared expert: what is about to be added up.
  virtual void parts(MatrixView<const float> routed, MatrixView<const float> shared) {
    static_cast<void>(routed), static_cast<void>(shared);
  }
};

class MoeRunner {
 public:
  // kernels: of the ISA; plan, kernels, team and communicator outlive the runner.
  static Result<MoeRunner> make(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
                                int64_t max_tokens, Bytes max_workspace = kMoeWorkspace,
                                Communicator& communicator = loopback());

  Status run(const MoeLayer& layer, MatrixView<const float> hidden, MatrixView<float> out,
             MoeTrace* trace = nullptr);

  int64_t workspace_bytes() const;

 private:
  MoeRunner(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
            Communicator& communicator);
  // Parts of run(), in order. The routed experts' sum, before the shared expert.
  Status run_routed(const MoeLayer& layer, MatrixView<const float> hidden, const TopK& topk,
                    MatrixView<float> out);
  void add_shared(const MoeLayer& layer, MatrixView<const float> hidden, MatrixView<float> out,
                  MoeTrace* trace);
  // Dispatch, experts, combine and reduction, in passes of as many tokens as the workspace holds.
  Status run_experts(const MoeLayer& layer, MatrixView<const float> in, const TopK& topk,
                     MatrixView<float> sum);
  Status run_pass(const MoeLayer& layer, MatrixView<const float> hidden, const TopK& topk,
                  MatrixView<float> out);

  const MoePlan* plan_;
  ThreadTeam* team_;
  Communicator* communicator_;
  ExpertsSizing sizing_;
  Gate gate_;
  DenseStages dense_;
  Buffer experts_workspace_;
};

}  // namespace rota

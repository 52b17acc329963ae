// One mixture layer after another: route, dispatch, experts, combine, reduce; into the latent width
// before and out of it behind, where there is one; plus what the shared expert makes of the same
// input, while tokens travel. Follows the plan and decides nothing. All layers of a plan share one
// runner and its workspace.
//
//   ROTA_ASSIGN_OR_RETURN(MoeRunner runner, MoeRunner::make(plan, kernels, team, max_tokens));
//   ROTA_RETURN_IF_ERROR(runner.run(layer, normed, out));
// hidden, out [T, H] float32, two matrices, hidden already normed, T <= max_tokens. A row of `out`
// depends on its row of `hidden` alone, bit for bit: not on T, other rows, threads, padding or,
// where experts are whole and TP is 1, ranks. run() does not allocate unless it fails; it fails
// only for weights found damaged, or with its communicator.
//
// Ranks (plan.parallel): all of them call the same functions with the same layers. Those of a
// tensor-parallel group have the same tokens, data-parallel ranks have their own, and say once a
// step how many everybody has: begin_step(). With none a rank takes part all the same. Where both
// TP and DP are more than 1 the ranks of a group send an even part of its tokens each, and share
// the sums at the end of a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "comm/communicator.h"
#include "kernels/kernels.h"
#include "moe/dense.h"
#include "moe/experts.h"
#include "moe/gate.h"
#include "moe/passes.h"
#include "moe/plan.h"
#include "moe/prepare_finalize.h"
#include "moe/tensor_rows.h"
#include "moe/weights.h"
#include "platform/memory.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

// Prefills of more tokens than fit run in passes. A pass reads every active expert's weights once,
// so this is as large as a few hundred MB of resident memory allow; 512 tokens of gpt-oss need 59
// MB. Counts what may come from all ranks.
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

// Who shares the model: all ranks, in the order of the plan's numbers; and of those this one's
// tensor-parallel group.
struct MoeRanks {
  MoeRanks(Communicator& all_ranks = loopback(), Communicator& tensor_group = loopback())
      : all(&all_ranks), tensor(&tensor_group) {}
  Communicator* all;
  Communicator* tensor;
};

class MoeRunner {
 public:
  // Collective. kernels: of the ISA; plan, kernels, team and communicators outlive the runner.
  // max_tokens: of a group.
  static Result<MoeRunner> make(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
                                int64_t max_tokens, Bytes max_workspace = kMoeWorkspace,
                                const MoeRanks& ranks = {});
  // What make() will take, without the other ranks.
  static Result<int64_t> count_workspace(const MoePlan& plan, const KernelTable& kernels,
                                         ThreadTeam& team, int64_t max_tokens,
                                         Bytes max_workspace = kMoeWorkspace);

  // [dp]: tokens of each data-parallel rank in the coming calls of run(). Not needed where DP is 1.
  void begin_step(std::span<const int64_t> tokens_of_group) {
    passes_->begin_step(tokens_of_group);
  }

  Status run(const MoeLayer& layer, MatrixView<const float> hidden, MatrixView<float> out,
             MoeTrace* trace = nullptr);

  int64_t workspace_bytes() const;
  int64_t tokens_a_pass() const { return tokens_; }  // of one rank at most, the same on all

 private:
  // What run() was given, and where its tokens go.
  struct Call {
    const MoeLayer* layer = nullptr;
    MatrixView<const float> hidden;
    TopK topk;  // slots, where the layer has some
  };
  MoeRunner(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
            const MoeRanks& ranks);
  // Parts of make(), in order.
  void choose_tokens(int64_t max_tokens, Bytes max_workspace);
  Status agree_on_tokens();
  void size_for(int64_t tokens);
  Status allocate_stages(int64_t max_tokens);
  Status allocate_experts();

  bool shares_tokens() const { return passes_->parts() > 1; }
  Bytes pass_workspace() const;

  // Parts of run(), in order. The routed experts' sum, before the shared expert.
  Status run_routed(const Call& call, MatrixView<float> out);
  Status add_shared(const Call& call, MatrixView<float> out, MoeTrace* trace);
  // Dispatch, experts, combine and reduction, in as many passes as the ranks need.
  Status run_experts(const Call& call, MatrixView<const float> in, MatrixView<float> sum);
  void run_shared(const Call& call);
  Status finish_pass(const MoeLayer& layer, MatrixView<float> sum);
  static void count_served_here(const MoeLayer& layer, const ExpertsInput& input);

  const MoePlan* plan_;
  ThreadTeam* team_;
  MoeRanks ranks_;
  int64_t tokens_ = 1;  // of one rank in a pass at most
  PrepareFinalizeSizing travel_;
  ExpertsSizing sizing_;
  std::optional<StepPasses> passes_;
  std::unique_ptr<PrepareFinalize> prepare_finalize_;
  std::optional<TensorRows> tensor_rows_;
  Gate gate_;
  DenseStages dense_;
  Buffer experts_workspace_;
  Buffer slot_ids_;  // [max_tokens, k]: where experts may be moved
};

}  // namespace rota

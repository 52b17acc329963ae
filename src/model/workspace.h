// Memory of a decoder's step, taken once: for at most max_batch_tokens rows and max_logit_rows
// logits.
//
// Contract: its size follows from options and config: the model's as this rank holds it; weights
// only say in which order a matmul reads its input, which takes as many bytes in each format. So
// plan_workspace() can count it without them.
//
//   ROTA_ASSIGN_OR_RETURN(Workspace w, Workspace::allocate(config, options, prepared));
//   ROTA_ASSIGN_OR_RETURN(w.moe, MoeRunner::make(...));    // with the other ranks
#pragma once

#include <optional>

#include "checkpoint/model_config.h"
#include "kernels/execution.h"
#include "model/attention.h"
#include "model/kv_cache.h"
#include "model/logits_gather.h"
#include "model/mamba2.h"
#include "model/model.h"
#include "moe/runner.h"

namespace rota {

// Bytes of one row's prepared matmul inputs.
struct PreparedRows {
  Bytes lm_head;
  Bytes attention;
  Bytes mamba;
};

struct Workspace {
  Matrix<float> residual;  // x [T, H]
  Matrix<float> normed;    // [T, H]: what a block reads
  Matrix<float> moe_out;   // [T, H]
  Matrix<float> selected;  // [logit rows, H]: final norm
  Buffer lm_head_input;    // of `selected`, prepared
  Matrix<float> cos;       // [1, T * head_dim / 2]
  Matrix<float> sin;
  AttentionWorkspace attention;
  std::optional<Mamba2Workspace> mamba;  // none where no layer is one
  std::optional<MoeRunner> moe;          // added later; points to the plan that it was made of
  std::optional<LogitsGather> logits;    // none where lm_head is on one rank

  static Result<Workspace> allocate(const ModelConfig& config, const ModelOptions& options,
                                    const PreparedRows& prepared);
  int64_t bytes() const;
};

// Scratch of each thread.
Result<Execution> make_execution(const ModelConfig& config, const KernelTable& kernels,
                                 Compute compute, ThreadTeam& team);

}  // namespace rota

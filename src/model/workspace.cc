#include "model/workspace.h"

#include <algorithm>

#include "model/tensor_parallel.h"
#include "moe/plan.h"
#include "platform/count_buffers.h"
#include "platform/cpu.h"

namespace rota {
namespace {

int64_t bytes_of(const Matrix<float>& matrix) {
  return matrix.rows() * matrix.view().stride() * static_cast<int64_t>(sizeof(float));
}

int64_t bytes_of(const AttentionWorkspace& workspace) {
  return bytes_of(workspace.qkv) + bytes_of(workspace.attended) +
         static_cast<int64_t>(workspace.prepared.size());
}

// Of a row that is `in` wide, whatever the format of the weights.
Bytes prepared_row(const Execution& exec, int64_t in) {
  WeightMatrix shape;
  shape.in = Extent(in);
  return exec.kernels().input_layout(shape, exec.compute()).token_stride;
}

PreparedRows prepared_rows(const ModelConfig& config, const Execution& exec) {
  const Bytes hidden = prepared_row(exec, config.hidden);
  PreparedRows rows{.lm_head = hidden, .attention = {}, .mamba = {}};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.has_attention(layer)) {
      rows.attention = std::max(hidden, prepared_row(exec, config.heads * config.head_dim));
    } else if (config.has_mamba(layer)) {
      rows.mamba = std::max(hidden, prepared_row(exec, config.mamba.inner()));
    }
  }
  return rows;
}

bool any_mamba(const ModelConfig& config) {
  return std::find(config.layer_kinds.begin(), config.layer_kinds.end(), LayerKind::kMamba) !=
         config.layer_kinds.end();
}

// Where each rank's columns of the logits begin, and where the last one's end.
std::vector<int64_t> vocabulary_cuts(const ModelConfig& config, int tp) {
  std::vector<int64_t> begin{0};
  for (int rank = 0; rank < tp; ++rank) {
    begin.push_back(vocabulary_of(config, tp, rank).end);
  }
  return begin;
}

}  // namespace

Result<Workspace> Workspace::allocate(const ModelConfig& config, const ModelOptions& options,
                                      const PreparedRows& prepared) {
  const int64_t tokens = options.max_batch_tokens;
  const Extent hidden(config.hidden);
  Workspace w;
  ROTA_ASSIGN_OR_RETURN(w.residual, Matrix<float>::allocate(tokens, hidden));
  ROTA_ASSIGN_OR_RETURN(w.normed, Matrix<float>::allocate(tokens, hidden));
  ROTA_ASSIGN_OR_RETURN(w.moe_out, Matrix<float>::allocate(tokens, hidden));
  ROTA_ASSIGN_OR_RETURN(w.selected, Matrix<float>::allocate(options.max_logit_rows, hidden));
  const Bytes lm_head_input = prepared.lm_head * options.max_logit_rows;
  ROTA_ASSIGN_OR_RETURN(w.lm_head_input, Buffer::allocate(static_cast<size_t>(lm_head_input.count),
                                                          Fill::kUnspecified));
  const Extent angles(std::max<int64_t>(1, tokens * config.head_dim / 2));
  ROTA_ASSIGN_OR_RETURN(w.cos, Matrix<float>::allocate(1, angles));
  ROTA_ASSIGN_OR_RETURN(w.sin, Matrix<float>::allocate(1, angles));
  ROTA_ASSIGN_OR_RETURN(w.attention,
                        AttentionWorkspace::allocate(config, tokens, prepared.attention));
  if (any_mamba(config)) {
    ROTA_ASSIGN_OR_RETURN(w.mamba, Mamba2Workspace::allocate(config, tokens, prepared.mamba));
  }
  if (const RankContext& ranks = options.ranks; ranks.shape().tp > 1) {
    ROTA_ASSIGN_OR_RETURN(w.logits, LogitsGather::make(vocabulary_cuts(config, ranks.shape().tp),
                                                       ranks.tensor_rank()));
  }
  return w;
}

int64_t Workspace::bytes() const {
  int64_t sum = (moe ? moe->workspace_bytes() : 0) + bytes_of(attention) +
                static_cast<int64_t>(lm_head_input.size()) + (mamba ? mamba->bytes() : 0) +
                (logits ? logits->bytes() : 0);
  for (const Matrix<float>* matrix : {&residual, &normed, &moe_out, &selected, &cos, &sin}) {
    sum += bytes_of(*matrix);
  }
  return sum;
}

Result<Execution> make_execution(const ModelConfig& config, const KernelTable& kernels,
                                 Compute compute, ThreadTeam& team) {
  const int64_t widest =
      std::max({config.hidden, config.heads * config.head_dim, config.mamba.inner()});
  const KvShape kv = make_kv_spec(config, compute, kernels).shape;
  return Execution::make(
      kernels, compute, team,
      {.max_in = Extent(widest), .attention = kernels.attend_scratch_bytes(kv, config.heads)});
}

Result<int64_t> plan_workspace(const ModelConfig& whole, const ModelOptions& options,
                               ThreadTeam& team) {
  const RankContext& ranks = options.ranks;
  const ModelConfig config =
      config_of_rank(whole, tensor_shard(whole, ranks.shape().tp, ranks.tensor_rank()));
  const CpuFeatures cpu = detect_cpu();
  const KernelTable& kernels = kernels_for(options.isa, cpu);
  ROTA_ASSIGN_OR_RETURN(
      const MoePlan plan,
      plan_moe(moe_config(config), options.moe,
               {.cpu = cpu, .isa = kernels.isa, .compute = options.compute}, ranks.parallel));
  const BuffersWithoutMemory counting;
  ROTA_ASSIGN_OR_RETURN(const Execution exec,
                        make_execution(config, kernels, options.compute, team));
  ROTA_ASSIGN_OR_RETURN(const Workspace workspace,
                        Workspace::allocate(config, options, prepared_rows(config, exec)));
  ROTA_ASSIGN_OR_RETURN(const int64_t moe,
                        MoeRunner::count_workspace(plan, kernels, team, options.max_batch_tokens));
  return workspace.bytes() + moe + exec.scratch_bytes();
}

}  // namespace rota

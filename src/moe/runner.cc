#include "moe/runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rota {
namespace {

// The most tokens, halving from max_tokens, whose workspace is no larger than allowed.
int64_t tokens_a_pass(const ExpertsBackend& backend, ExpertsSizing sizing, int64_t max_tokens,
                      Bytes max_workspace) {
  int64_t tokens = max_tokens;
  for (; tokens > 1; tokens = (tokens + 1) / 2) {
    sizing.tokens = tokens;
    if (backend.workspace_bytes(sizing) <= max_workspace) break;
  }
  return tokens;
}

}  // namespace

MoeRunner::MoeRunner(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
                     Communicator& communicator)
    : plan_(&plan), team_(&team), communicator_(&communicator) {
  sizing_ = {.config = &plan.config,
             .plan = &plan.widths,
             .kernels = &kernels,
             .compute = plan.choice.backend->compute(plan.context.compute),
             .local_experts = plan.config.router.experts,
             .tokens = 1,
             .threads = team.size()};
}

Result<MoeRunner> MoeRunner::make(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
                                  int64_t max_tokens, Bytes max_workspace,
                                  Communicator& communicator) {
  ROTA_CHECK(max_tokens >= 1, "a runner for at least one token");
  MoeRunner runner(plan, kernels, team, communicator);
  const ExpertsBackend& backend = *plan.choice.backend;
  runner.sizing_.tokens = tokens_a_pass(backend, runner.sizing_, max_tokens, max_workspace);
  const int64_t bytes = backend.workspace_bytes(runner.sizing_).count;
  ROTA_ASSIGN_OR_RETURN(runner.experts_workspace_,
                        Buffer::allocate(static_cast<size_t>(bytes), Fill::kUnspecified));
  ROTA_ASSIGN_OR_RETURN(runner.gate_, Gate::make(plan.config, kernels, team, max_tokens));
  ROTA_ASSIGN_OR_RETURN(runner.dense_, DenseStages::make(plan.config, kernels, plan.context.compute,
                                                         team, max_tokens));
  return runner;
}

int64_t MoeRunner::workspace_bytes() const {
  return static_cast<int64_t>(experts_workspace_.size()) + gate_.workspace_bytes() +
         dense_.workspace_bytes();
}

Status MoeRunner::run(const MoeLayer& layer, MatrixView<const float> hidden, MatrixView<float> out,
                      MoeTrace* trace) {
  ROTA_CHECK(hidden.rows() == out.rows() && out.width().logical() == plan_->widths.final.logical(),
             "a row out for each row in");
  const TopK topk = gate_.run(layer.router(), layer.correction_bias(), hidden);
  if (trace != nullptr) trace->routed(topk);
  ROTA_RETURN_IF_ERROR(run_routed(layer, hidden, topk, out));
  add_shared(layer, hidden, out, trace);
  const std::span<int64_t> served = layer.served();
  for (int64_t slot = 0; slot < topk.tokens * topk.k; ++slot) {
    ++served[static_cast<size_t>(topk.ids[slot])];
  }
  return {};
}

Status MoeRunner::run_routed(const MoeLayer& layer, MatrixView<const float> hidden,
                             const TopK& topk, MatrixView<float> out) {
  if (!plan_->widths.latent_in) return run_experts(layer, hidden, topk, out);
  const MatrixView<float> sum = dense_.latent_sum(hidden.rows());
  ROTA_RETURN_IF_ERROR(run_experts(layer, dense_.into_latent(layer.dense(), hidden), topk, sum));
  dense_.out_of_latent(layer.dense(), sum, out);
  return {};
}

void MoeRunner::add_shared(const MoeLayer& layer, MatrixView<const float> hidden,
                           MatrixView<float> out, MoeTrace* trace) {
  if (!plan_->widths.shared_add) return;
  const MatrixView<const float> shared = dense_.shared(layer.dense(), hidden);
  if (trace != nullptr) trace->parts(out, shared);
  dense_.add(out, shared);
}

Status MoeRunner::run_experts(const MoeLayer& layer, MatrixView<const float> in, const TopK& topk,
                              MatrixView<float> sum) {
  for (int64_t first = 0; first < in.rows(); first += sizing_.tokens) {
    const int64_t count = std::min(sizing_.tokens, in.rows() - first);
    ROTA_RETURN_IF_ERROR(run_pass(layer, in.row_range(first, count), topk.range(first, count),
                                  sum.row_range(first, count)));
  }
  return {};
}

Status MoeRunner::run_pass(const MoeLayer& layer, MatrixView<const float> hidden, const TopK& topk,
                           MatrixView<float> out) {
  const PrepareFinalize& prepare_finalize = prepare_finalize_for(plan_->transport);
  const DispatchedTokens tokens = prepare_finalize.dispatch(hidden, topk);
  ROTA_ASSIGN_OR_RETURN(const ExpertsOutput experts,
                        plan_->choice.backend->run(
                            {.sizing = &sizing_,
                             .layer = &layer,
                             .hidden = tokens.hidden,
                             .topk = tokens.topk,
                             .team = team_,
                             .workspace = {experts_workspace_.data(), experts_workspace_.size()}}));
  Partial<float> routed = prepare_finalize.combine({.experts = &experts,
                                                    .topk = topk,
                                                    .out = out.column_range(0, plan_->widths.cut),
                                                    .kernels = sizing_.kernels,
                                                    .team = team_});
  return communicator_->reduce(std::move(routed)).status();
}

}  // namespace rota

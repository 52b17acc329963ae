#include "moe/runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "platform/count_buffers.h"

namespace rota {
namespace {

constexpr int64_t kId = sizeof(int32_t);

}  // namespace

MoeRunner::MoeRunner(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
                     const MoeRanks& ranks)
    : plan_(&plan), team_(&team), ranks_(ranks) {
  const Compute compute = plan.choice.backend->compute(plan.context.compute);
  travel_ = {.transport = plan.parallel.transport,
             .plan = &plan.widths,
             .config = &plan.config,
             .map = plan.map,
             .experts_whole = plan.parallel.experts_whole(),
             .compute = compute,
             .max_tokens = 1,
             .ranks = plan.parallel.shape.ranks(),
             .kernels = &kernels,
             .team = &team,
             .communicator = ranks.all};
  sizing_ = {.config = &plan.config,
             .plan = &plan.widths,
             .kernels = &kernels,
             .compute = compute,
             .local_experts = travel_.most_experts(),
             .tokens = 1,
             .threads = team.size()};
}

Result<MoeRunner> MoeRunner::make(const MoePlan& plan, const KernelTable& kernels, ThreadTeam& team,
                                  int64_t max_tokens, Bytes max_workspace, const MoeRanks& ranks) {
  ROTA_CHECK(ranks.all->ranks() == plan.parallel.shape.ranks() &&
                 ranks.all->rank() == plan.parallel.shape.rank,
             "a plan of this rank among these");
  ROTA_CHECK(ranks.tensor->ranks() == plan.parallel.shape.tp, "and of its tensor-parallel group");
  MoeRunner runner(plan, kernels, team, ranks);
  runner.choose_tokens(max_tokens, max_workspace);
  ROTA_RETURN_IF_ERROR(runner.agree_on_tokens());
  ROTA_RETURN_IF_ERROR(runner.allocate_experts());
  ROTA_RETURN_IF_ERROR(runner.allocate_stages(max_tokens));
  return runner;
}

Result<int64_t> MoeRunner::count_workspace(const MoePlan& plan, const KernelTable& kernels,
                                           ThreadTeam& team, int64_t max_tokens,
                                           Bytes max_workspace) {
  MoeRunner runner(plan, kernels, team, {});
  runner.choose_tokens(max_tokens, max_workspace);
  const BuffersWithoutMemory counting;
  ROTA_RETURN_IF_ERROR(runner.allocate_stages(max_tokens));
  return runner.workspace_bytes();
}

// The most tokens, halving from max_tokens, whose workspace is no larger than allowed.
void MoeRunner::choose_tokens(int64_t max_tokens, Bytes max_workspace) {
  ROTA_CHECK(max_tokens >= 1, "a runner for at least one token");
  const StepPasses one(plan_->parallel.shape, plan_->parallel.transport, 1);
  int64_t tokens = (max_tokens + one.parts() - 1) / one.parts();
  for (size_for(tokens); tokens > 1 && pass_workspace() > max_workspace; size_for(tokens)) {
    tokens = (tokens + 1) / 2;
  }
}

void MoeRunner::size_for(int64_t tokens) {
  tokens_ = tokens;
  passes_.emplace(plan_->parallel.shape, plan_->parallel.transport, tokens);
  travel_.max_tokens = tokens;
  const PrepareFinalizeNeeds needs = prepare_finalize_needs(travel_);
  sizing_.tokens = needs.tokens;
  sizing_.places = needs.places * sizing_.local_experts;
}

// Ranks may hold more or less, in more or fewer threads.
Status MoeRunner::agree_on_tokens() {
  const auto ranks = static_cast<size_t>(ranks_.all->ranks());
  if (ranks == 1) return {};
  std::vector<int64_t> tokens(ranks), begin(ranks + 1);
  for (size_t rank = 0; rank <= ranks; ++rank) {
    begin[rank] = static_cast<int64_t>(rank * sizeof(int64_t));
  }
  ROTA_RETURN_IF_ERROR(ranks_.all->all_gather(
      std::as_bytes(std::span(&tokens_, 1)),
      {.data = std::as_writable_bytes(std::span(tokens)).data(), .begin = begin}));
  size_for(*std::min_element(tokens.begin(), tokens.end()));
  return {};
}

Status MoeRunner::allocate_experts() {
  const int64_t bytes = plan_->choice.backend->workspace_bytes(sizing_).count;
  ROTA_ASSIGN_OR_RETURN(experts_workspace_,
                        Buffer::allocate(static_cast<size_t>(bytes), Fill::kUnspecified));
  ROTA_ASSIGN_OR_RETURN(prepare_finalize_, make_prepare_finalize(travel_));
  if (shares_tokens()) {
    ROTA_ASSIGN_OR_RETURN(tensor_rows_, TensorRows::make(*ranks_.tensor, tokens_ * passes_->parts(),
                                                         plan_->widths.cut));
  }
  return {};
}

Status MoeRunner::allocate_stages(int64_t max_tokens) {
  const KernelTable& kernels = *sizing_.kernels;
  ROTA_ASSIGN_OR_RETURN(gate_, Gate::make(plan_->config, kernels, *team_, max_tokens));
  ROTA_ASSIGN_OR_RETURN(dense_, DenseStages::make(plan_->config, plan_->widths, kernels,
                                                  plan_->context.compute, *team_, max_tokens));
  if (plan_->slots) {
    const int64_t bytes = max_tokens * plan_->config.router.top_k * kId;
    ROTA_ASSIGN_OR_RETURN(slot_ids_,
                          Buffer::allocate(static_cast<size_t>(bytes), Fill::kUnspecified));
  }
  return {};
}

Bytes MoeRunner::pass_workspace() const {
  Bytes bytes =
      plan_->choice.backend->workspace_bytes(sizing_) + prepare_finalize_needs(travel_).workspace;
  if (shares_tokens()) {
    bytes =
        bytes + TensorRows::bytes(passes_->parts(), tokens_ * passes_->parts(), plan_->widths.cut);
  }
  return bytes;
}

int64_t MoeRunner::workspace_bytes() const {
  return pass_workspace().count + gate_.workspace_bytes() + dense_.workspace_bytes() +
         static_cast<int64_t>(slot_ids_.size());
}

Status MoeRunner::run(const MoeLayer& layer, MatrixView<const float> hidden, MatrixView<float> out,
                      MoeTrace* trace) {
  ROTA_CHECK(hidden.rows() == out.rows() && out.width().logical() == plan_->widths.final.logical(),
             "a row out for each row in");
  if (const int64_t tokens = hidden.rows(); plan_->parallel.shape.dp == 1) begin_step({&tokens, 1});
  ROTA_CHECK(passes_->tokens_of_mine() == hidden.rows(), "as many tokens as begin_step() said");
  const TopK topk = gate_.run(layer.router(), layer.correction_bias(), hidden);
  if (trace != nullptr) trace->routed(topk);
  const std::span<int32_t> slot_ids(reinterpret_cast<int32_t*>(slot_ids_.data()),
                                    slot_ids_.size() / sizeof(int32_t));
  const Call call{.layer = &layer,
                  .hidden = hidden,
                  .topk = layer.choose_slots(topk, plan_->parallel.shape.rank, slot_ids)};
  ROTA_RETURN_IF_ERROR(run_routed(call, out));
  ROTA_RETURN_IF_ERROR(add_shared(call, out, trace));
  const std::span<int64_t> served = layer.served();
  for (int64_t slot = 0; slot < topk.tokens * topk.k; ++slot) {
    ++served[static_cast<size_t>(topk.ids[slot])];
  }
  return {};
}

Status MoeRunner::run_routed(const Call& call, MatrixView<float> out) {
  if (!plan_->widths.latent_in) return run_experts(call, call.hidden, out);
  const DenseMatrices& dense = call.layer->dense();
  const MatrixView<float> sum = dense_.latent_sum(call.hidden.rows());
  ROTA_RETURN_IF_ERROR(run_experts(call, dense_.into_latent(dense, call.hidden), sum));
  dense_.out_of_latent(dense, sum, out);
  return {};
}

void MoeRunner::run_shared(const Call& call) {
  if (plan_->widths.shared_add) dense_.run_shared(call.layer->dense(), call.hidden, *ranks_.all);
}

// Reduced apart from the routed sum, which is owed over other ranks, or in another width.
Status MoeRunner::add_shared(const Call& call, MatrixView<float> out, MoeTrace* trace) {
  if (!plan_->widths.shared_add || call.hidden.rows() == 0) return {};
  ROTA_ASSIGN_OR_RETURN(const Reduced<float> shared,
                        ranks_.tensor->reduce(dense_.shared_share(call.hidden.rows())));
  if (trace != nullptr) trace->parts(out, shared.rows());
  dense_.add(out, shared.rows());
  return {};
}

Status MoeRunner::run_experts(const Call& call, MatrixView<const float> in, MatrixView<float> sum) {
  for (int64_t index = 0; index < passes_->count(); ++index) {
    const MoePass pass = passes_->at(index);
    const auto rows = [](auto matrix, const ShardRange& range) {
      return matrix.row_range(range.begin, range.end - range.begin);
    };
    ROTA_RETURN_IF_ERROR(prepare_finalize_->start_dispatch(
        {.hidden = rows(in, pass.mine),
         .topk = call.topk.range(pass.mine.begin, pass.mine.end - pass.mine.begin),
         .tokens_of_rank = pass.tokens_of_rank}));
    if (index == 0) run_shared(call);
    ROTA_RETURN_IF_ERROR(finish_pass(*call.layer, rows(sum, pass.mine)));
    if (tensor_rows_) ROTA_RETURN_IF_ERROR(tensor_rows_->gather(rows(sum, pass.group)));
  }
  return {};
}

Status MoeRunner::finish_pass(const MoeLayer& layer, MatrixView<float> sum) {
  ROTA_ASSIGN_OR_RETURN(const ExpertsInput input, prepare_finalize_->finish_dispatch());
  count_served_here(layer, input);
  ROTA_ASSIGN_OR_RETURN(const ExpertsOutput experts,
                        plan_->choice.backend->run(
                            {.sizing = &sizing_,
                             .layer = &layer,
                             .hidden = input.hidden,
                             .topk = input.topk,
                             .batched = input.batched,
                             .team = team_,
                             .workspace = {experts_workspace_.data(), experts_workspace_.size()}}));
  return prepare_finalize_->combine(experts, sum.column_range(0, plan_->widths.cut)).status();
}

void MoeRunner::count_served_here(const MoeLayer& layer, const ExpertsInput& input) {
  const std::span<int64_t> served = layer.served_here();
  if (input.batched) {
    for (size_t local = 0; local < served.size(); ++local) {
      served[local] += input.batched->counts[local];
    }
    return;
  }
  for (int64_t slot = 0; slot < input.topk.tokens * input.topk.k; ++slot) {
    const auto local = layer.map().local(input.topk.ids[slot]);
    if (local) ++served[static_cast<size_t>(*local)];
  }
}

}  // namespace rota

#include "moe/width_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "moe/experts.h"
#include "moe/options.h"

namespace rota {
namespace {

// Widths that the low-latency kind has buffers for.
constexpr std::array<int64_t, 8> kLowLatencyWidths = {2048, 2560, 3072, 4096,
                                                      5120, 6144, 7168, 8192};
// The alltoallv kind sends rows in multiples of 512 bytes of BF16.
constexpr int64_t kAlltoallvElements = 512 / 2;

Result<Extent> transport_width(Transport transport, int64_t logical) {
  switch (transport) {
    case Transport::kNoDpEp:
    case Transport::kAllgatherReducescatter:
      return Extent(logical);
    case Transport::kAlltoallv:
      return Extent::rounded_up(logical, kAlltoallvElements);
    case Transport::kLowLatency:
      for (const int64_t width : kLowLatencyWidths) {
        if (logical <= width) return Extent(logical, width);
      }
      return error(StatusCode::kUnsupported,
                   "prepare/finalize low_latency carries rows of at most {} elements, this model's "
                   "experts take {}; use another kind",
                   kLowLatencyWidths.back(), logical);
  }
  return error(StatusCode::kInternal, "unknown transport");
}

Status check_transport(Transport transport, const ParallelShape& parallel) {
  if (parallel.dp < 1 || parallel.tp < 1 || parallel.rank < 0 ||
      parallel.rank >= parallel.ranks()) {
    return invalid_argument(
        "data parallel {} x tensor parallel {}, rank {}: expected sizes of at least 1 and a rank "
        "below their product",
        parallel.dp, parallel.tp, parallel.rank);
  }
  const bool moves_tokens = transport != Transport::kNoDpEp;
  if (parallel.dp == 1 && moves_tokens) {
    return invalid_argument("prepare/finalize {} is for data parallel > 1; use no_dp_ep",
                            to_string(transport));
  }
  if (parallel.dp > 1 && !moves_tokens) {
    return invalid_argument("data parallel {} needs a prepare/finalize that moves tokens",
                            parallel.dp);
  }
  if (parallel.dp > 1 && !parallel.expert_parallel &&
      transport != Transport::kAllgatherReducescatter) {
    return invalid_argument(
        "without expert parallel every rank holds a slice of every expert: prepare/finalize {} "
        "cannot serve, use allgather_reducescatter",
        to_string(transport));
  }
  return {};
}

Status check_alignment(std::string_view flag, int64_t alignment) {
  if (alignment >= 0 && alignment <= kMaxMoeAlignment) return {};
  return invalid_argument("{} {}: expected 0 to {}", flag, alignment, kMaxMoeAlignment);
}

// Both must be met.
int64_t joint_alignment(int64_t backend, int64_t option) {
  return option == 0 ? backend : std::lcm(backend, option);
}

// Who asks for a multiple of how many elements.
struct Request {
  int64_t alignment = 1;
  std::string_view who;
};

WidthPlan::Asker alignment_asker(const Request& backend, const Request& flag) {
  const int64_t joint = joint_alignment(backend.alignment, flag.alignment);
  const Request& asker = joint == backend.alignment ? backend : flag;
  std::string reason = fmt::format("{} asks for a multiple of {}", asker.who, asker.alignment);
  if (joint != asker.alignment) {
    reason += fmt::format(", {} for one of {}: together {}", backend.who, backend.alignment, joint);
  }
  return {.who = std::string(asker.who), .reason = std::move(reason)};
}

struct StepList {
  std::vector<WidthStep> steps;
  // A row arrives with `before` valid columns; the step's extent says what it becomes.
  void add(std::string_view name, Extent width) {
    steps.push_back({.name = name,
                     .width = width,
                     .action = WidthAction::kPass,
                     .reason = {},
                     .padded_by = {},
                     .cut_by = {}});
  }
  // A step that may be padded, by whom, and what ends its padding.
  void add(std::string_view name, Extent width, const WidthPlan::Asker& asker,
           std::string_view cut_by) {
    add(name, width);
    if (!width.is_padded()) return;
    WidthStep& step = steps.back();
    step.action = WidthAction::kPad;
    step.reason = asker.reason;
    step.padded_by = asker.who;
    step.cut_by = cut_by;
  }
  void cut(std::string_view name, Extent width, bool was_padded) {
    add(name, width);
    if (!was_padded) return;
    steps.back().action = WidthAction::kCut;
    steps.back().reason = "padding ends here";
  }
  void add_if(std::string_view name, const std::optional<Extent>& width) {
    if (width) add(name, *width);
  }
};

}  // namespace

std::string_view to_string(Transport transport) {
  switch (transport) {
    case Transport::kNoDpEp:
      return "no_dp_ep";
    case Transport::kAllgatherReducescatter:
      return "allgather_reducescatter";
    case Transport::kAlltoallv:
      return "alltoallv";
    case Transport::kLowLatency:
      return "low_latency";
  }
  return "unknown";
}

std::string_view to_string(WidthAction action) {
  switch (action) {
    case WidthAction::kPass:
      return "pass";
    case WidthAction::kPad:
      return "pad";
    case WidthAction::kCut:
      return "cut";
  }
  return "unknown";
}

std::string_view describe_cut(std::string_view cut_by) {
  if (cut_by == "gather") return "copies only what is meant out of the rows that arrive";
  if (cut_by == "gate_up" || cut_by == "up" || cut_by == "down") {
    return "sums over it: zeros times zeros";
  }
  if (cut_by == "combine") return "adds up only what is meant";
  return "keeps only what is meant: no sum over ranks and no shared experts come before";
}

ShardRange shard_range(int64_t size, int64_t block, int parts, int index) {
  const int64_t blocks = round_up(size, block) / block;
  const int64_t each = round_up(blocks, parts) / parts;
  return {.begin = std::min(size, each * index * block),
          .end = std::min(size, each * (index + 1) * block)};
}

Result<WidthPlan> plan_widths(const PlanInputs& inputs) {
  const MoeConfig& moe = inputs.moe;
  ROTA_RETURN_IF_ERROR(check_transport(inputs.transport, inputs.parallel));
  ROTA_RETURN_IF_ERROR(check_alignment("--moe-hidden-alignment", inputs.hidden_alignment));
  ROTA_RETURN_IF_ERROR(
      check_alignment("--moe-intermediate-alignment", inputs.intermediate_alignment));
  const ExpertsAlignment alignment = inputs.experts->alignment(moe);
  const int64_t hidden = moe.experts_hidden();

  WidthPlan plan;
  plan.gated = moe.gated();
  plan.router_in = Extent(moe.hidden);
  if (moe.latent > 0) plan.latent_in = Extent(moe.latent);
  ROTA_ASSIGN_OR_RETURN(plan.dispatch, transport_width(inputs.transport, hidden));
  plan.experts_in =
      Extent::rounded_up(hidden, joint_alignment(alignment.hidden, inputs.hidden_alignment));

  const ShardRange shard =
      shard_range(moe.intermediate, moe.shard_block(), inputs.parallel.shards(),
                  inputs.parallel.shards() == 1 ? 0 : inputs.parallel.rank);
  plan.intermediate_begin = shard.begin;
  if (shard.end > shard.begin) {
    plan.intermediate =
        Extent::rounded_up(shard.end - shard.begin,
                           joint_alignment(alignment.intermediate, inputs.intermediate_alignment));
  }

  plan.experts_out = inputs.experts->output(moe, plan.experts_in);
  ROTA_ASSIGN_OR_RETURN(plan.combine,
                        transport_width(inputs.transport, plan.experts_out.logical()));
  plan.cut = Extent(plan.experts_out.logical());
  const bool sums_at_home = inputs.transport != Transport::kNoDpEp;
  if (inputs.parallel.ranks() > 1 && !sums_at_home) plan.reduce = plan.cut;
  if (moe.latent > 0) plan.latent_out = Extent(moe.hidden);
  if (moe.shared_intermediate > 0) {
    plan.shared_in = Extent(moe.hidden);
    plan.shared_inside = shard_range(moe.shared_intermediate, moe.shared_block, inputs.parallel.tp,
                                     inputs.parallel.rank % inputs.parallel.tp);
    if (inputs.parallel.tp > 1) plan.shared_reduce = Extent(moe.hidden);
    plan.shared_add = Extent(moe.hidden);
  }
  plan.final = Extent(moe.hidden);

  const std::string_view backend = inputs.experts->name();
  plan.hidden_asker = alignment_asker({alignment.hidden, backend},
                                      {inputs.hidden_alignment, "--moe-hidden-alignment"});
  plan.intermediate_asker =
      alignment_asker({alignment.intermediate, backend},
                      {inputs.intermediate_alignment, "--moe-intermediate-alignment"});
  plan.transport_asker = {.who = std::string(to_string(inputs.transport)),
                          .reason = fmt::format("{} rounds rows", to_string(inputs.transport))};
  return plan;
}

std::vector<WidthStep> WidthPlan::steps() const {
  StepList list;
  list.add("router_in", router_in);
  list.add_if("latent_in", latent_in);
  list.add("dispatch", dispatch, transport_asker, "gather");
  list.add("experts_in", experts_in, hidden_asker, gated ? "gate_up" : "up");
  if (intermediate) list.add("intermediate", *intermediate, intermediate_asker, "down");
  list.add("experts_out", experts_out, hidden_asker, "combine");
  list.add("combine", combine, transport_asker, "cut");
  list.cut("cut", cut, experts_out.is_padded() || combine.is_padded());
  list.add_if("reduce", reduce);
  list.add_if("latent_out", latent_out);
  list.add_if("shared_in", shared_in);
  list.add_if("shared_reduce", shared_reduce);
  list.add_if("shared_add", shared_add);
  list.add("final", final);
  return std::move(list.steps);
}

}  // namespace rota

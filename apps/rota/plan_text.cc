// A plan as text, for people.
#include <fmt/format.h>

#include "engine/format_bytes.h"
#include "kernels/attention.h"
#include "rota/model_plan.h"

namespace rota {
namespace {

constexpr int kFactIndent = 18;

std::string fact(std::string_view name, std::string_view text) {
  return left(name, kFactIndent) + wrap(text, kFactIndent, kDrawingColumns) + "\n";
}

std::string title(const ModelPlan& plan) {
  const ModelConfig& config = plan.config;
  const std::string which = plan.census.moe_layers == config.layers
                                ? "each"
                                : fmt::format("{} of them", plan.census.moe_layers);
  const std::string text = fmt::format(
      "{}: {}, {} layers, {} with {} experts of which {} serve a token", plan.name,
      to_string(config.architecture), config.layers, which, config.experts, config.top_k);
  return wrap(text, 2, kDrawingColumns).append("\n");
}

std::string widths(const ModelPlan& plan, const Painter& paint) {
  const std::string where =
      plan.rank_count() == 1 ? "" : fmt::format(", on rank 0 of {}", plan.rank_count());
  return paint(Paint::kBold, fmt::format("A token's row through a mixture layer{}", where)) +
         fmt::format(" (elements; {} meant, {} padding)\n", paint(Paint::kMeant, paint.full()),
                     paint(Paint::kPadding, paint.light())) +
         draw_widths(plan.ranks.front().widths.steps(), paint);
}

std::string choices(const ModelPlan& plan) {
  const BackendChoice& choice = plan.engine.moe.choice;
  std::string out = fact("Backend", choice.backend->name());
  for (const BackendRefusal& one : choice.refused) {
    out += fact(fmt::format("  not {}", one.backend), "");
    out.pop_back();
    out += fmt::format(" {}\n", wrap(one.reason, kFactIndent, kDrawingColumns - 10));
  }
  return out + fact("Prepare/finalize", to_string(plan.parallel.transport));
}

std::string weights(const ModelPlan& plan) {
  const std::string copies =
      plan.copied_bytes == 0
          ? "nothing is copied"
          : fmt::format("padded copies of the experts, because of {}: {} ({} bytes)",
                        plan.engine.copied_because, format_bytes(plan.copied_bytes),
                        plan.copied_bytes);
  return fact(
      "Weights",
      fmt::format("{} ({} bytes, from {}); {}", format_bytes(plan.weight_bytes), plan.weight_bytes,
                  plan.weights_found ? "tensor headers" : "config.json", copies));
}

std::string cache(const ModelPlan& plan) {
  std::string out = fact("Workspace", fmt::format("{} for a step and its logits{}",
                                                  format_bytes(plan.engine.workspace_bytes),
                                                  plan.rank_count() > 1 ? ", on each rank" : ""));
  out += fact("KV cache", fmt::format("{} bytes a token{}, pages of {} tokens and {} bytes",
                                      plan.kv.bytes_per_token().count,
                                      plan.rank_count() > 1 ? " on the fullest rank" : "",
                                      kKvBlockTokens, plan.kv.page_bytes.count));
  if (!plan.no_budget.ok()) {
    // In one line, as `rota serve` says it.
    return out + fmt::format("\nNot on this machine: {}\n", plan.no_budget.message());
  }
  const std::string whose =
      plan.ranks_here > 1
          ? fmt::format(" for each of {} ranks that share this machine's memory", plan.ranks_here)
          : " here";
  out += fact("", fmt::format("{} for {} tokens{}; the longest sequence is {}",
                              format_bytes(plan.budget.bytes), plan.budget.tokens, whose,
                              plan.budget.max_model_len));
  if (plan.budget.slots > 0) out += fact("States", describe_states(plan.kv, plan.budget));
  if (!plan.budget.note.empty()) out += fact("", plan.budget.note);
  return out;
}

std::string warnings(const ModelPlan& plan, const Painter& paint) {
  if (plan.warnings.empty()) return "";
  std::string out = fmt::format("\n{}\n", paint(Paint::kBold, "Warnings"));
  for (const PlanWarning& one : plan.warnings) {
    out += fmt::format("  {} {}\n    {} {}\n", paint(Paint::kWarning, "!"),
                       wrap(one.what, 4, kDrawingColumns), paint(Paint::kDim, paint.head()),
                       wrap(one.advice, 6, kDrawingColumns));
  }
  return out;
}

}  // namespace

std::string draw_plan(const ModelPlan& plan, const DrawingStyle& style) {
  const Painter paint(style);
  return fmt::format("{}\n{}\n{}{}{}\n{}\n{}{}", title(plan), widths(plan, paint), choices(plan),
                     weights(plan), cache(plan), draw_ranks(plan, paint),
                     draw_roofline(plan, paint), warnings(plan, paint));
}

}  // namespace rota

// The tables of `rota plan`: what each rank holds, what a token costs.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/format_bytes.h"
#include "rota/model_plan.h"

namespace rota {
namespace {

// Neighbours that hold the same; parts of a width count as the same if they are as wide.
struct RankGroup {
  std::vector<int> numbers;
  const RankPlan* first = nullptr;
  int64_t intermediate_end = 0;  // of the last one
};

int64_t intermediate_of(const RankPlan& rank) {
  return rank.intermediate.end - rank.intermediate.begin;
}

bool hold_the_same(const RankPlan& a, const RankPlan& b) {
  return a.experts == b.experts && intermediate_of(a) == intermediate_of(b) &&
         a.query_heads == b.query_heads && a.kv_heads == b.kv_heads && a.bytes() == b.bytes() &&
         a.copied_bytes == b.copied_bytes;
}

std::vector<RankGroup> fold_ranks(const std::vector<RankPlan>& ranks) {
  std::vector<RankGroup> groups;
  for (const RankPlan& rank : ranks) {
    if (groups.empty() || !hold_the_same(*groups.back().first, rank)) {
      groups.push_back({.numbers = {}, .first = &rank});
    }
    groups.back().numbers.push_back(rank.rank);
    groups.back().intermediate_end = rank.intermediate.end;
  }
  return groups;
}

// "[0, 2688) by 384" where several ranks hold a part each.
std::string shard_of(const RankGroup& group) {
  const RankPlan& rank = *group.first;
  const int64_t width = intermediate_of(rank);
  if (width == 0) return "none";
  const std::string range =
      fmt::format("[{}, {})", rank.intermediate.begin, group.intermediate_end);
  const bool several = group.intermediate_end - rank.intermediate.begin > width;
  return several ? fmt::format("{} by {}", range, width) : range;
}

struct RankColumn {
  std::string_view name;
  int width;
  bool is_text = false;  // on the left; numbers are on the right
};
constexpr std::array<RankColumn, 10> kRankColumns = {{{"ranks", 7, true},
                                                      {"experts", 7},
                                                      {" intermediate", 22, true},
                                                      {"padded", 6},
                                                      {"heads", 6},
                                                      {"experts", 10},
                                                      {"attention", 10},
                                                      {"embedding", 10},
                                                      {"other", 10},
                                                      {"total", 10}}};

std::string rank_row(const std::array<std::string, kRankColumns.size()>& cells) {
  std::string out = "  ";
  for (size_t i = 0; i < cells.size(); ++i) {
    const RankColumn& column = kRankColumns[i];
    out += column.is_text ? left(cells[i], column.width) : right(cells[i], column.width);
  }
  return out + "\n";
}

std::string rank_row(const RankGroup& group) {
  const RankPlan& rank = *group.first;
  const int64_t width = intermediate_of(rank);
  const int64_t padded = rank.intermediate_padded();
  return rank_row(
      {list_ranks(group.numbers), fmt::format("{}", rank.experts),
       fmt::format(" {}", shard_of(group)), padded > width ? fmt::format("{}", padded) : "-",
       fmt::format("{}/{}", rank.query_heads, rank.kv_heads), format_bytes(rank.expert_bytes),
       format_bytes(rank.attention_bytes), format_bytes(rank.embedding_bytes),
       format_bytes(rank.other_bytes), format_bytes(rank.bytes())});
}

std::string describe_parallel(const ParallelChoice& parallel) {
  const ParallelShape& shape = parallel.shape;
  if (shape.ranks() == 1) return "One rank holds all";
  std::string out = fmt::format("{} ranks: data parallel {}, tensor parallel {}", shape.ranks(),
                                shape.dp, shape.tp);
  if (!shape.expert_parallel) return out + "; every expert is cut over all of them";
  out += fmt::format("; whole experts are dealt {}", parallel.placement == ExpertPlacement::kLinear
                                                         ? "as neighbours (linear)"
                                                         : "in turn (round_robin)");
  if (!parallel.experts_move) return out;
  return out + fmt::format(", {} of each layer redundant, and move to even out the load",
                           parallel.redundant_experts);
}

std::string format_flop(double flop) {
  constexpr std::array<std::string_view, 5> kUnits = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (flop >= 999.995 && unit + 1 < kUnits.size()) {
    flop *= 1e-3;
    ++unit;
  }
  return fmt::format("{:.2f} {}", flop, kUnits[unit]);
}

std::string format_cost(double bytes) { return format_bytes(static_cast<int64_t>(bytes)); }

class RooflineTable {
 public:
  RooflineTable(const ModelPlan& plan, const Painter& paint)
      : plan_(plan),
        roofline_(plan.roofline),
        paint_(paint),
        costs_{&roofline_.alone, &roofline_.batched, &roofline_.prompt} {}

  std::string draw() const {
    std::string out = title();
    for (const std::string_view part : parts()) out += row(part);
    out += total();
    out += row_of("FLOP a byte", [](const TokenCost& cost) {
      return std::pair(fmt::format("{:.1f}", cost.intensity()), std::string());
    });
    return out + bounds();
  }

 private:
  static constexpr int kLabel = 16;
  static constexpr int kCell = 13;

  std::string title() const {
    std::string out =
        left("", kLabel) +
        paint_(Paint::kBold,
               right("decoded alone", 2 * kCell) +
                   right(fmt::format("{} decoded at once", roofline_.batch), 2 * kCell) +
                   right(fmt::format("prompt, {} a step", roofline_.prompt_chunk), 2 * kCell)) +
        "\n";
    out += left("", kLabel);
    for (size_t i = 0; i < costs_.size(); ++i) {
      out += paint_(Paint::kDim, right("bytes", kCell) + right("FLOP", kCell));
    }
    return out + "\n";
  }

  // In the order of the first that has them.
  std::vector<std::string_view> parts() const {
    std::vector<std::string_view> names;
    for (const TokenCost* cost : costs_) {
      for (const PartCost& part : cost->parts) {
        if (std::find(names.begin(), names.end(), part.name) == names.end()) {
          names.push_back(part.name);
        }
      }
    }
    return names;
  }

  template <typename Cells>
  std::string row_of(std::string_view label, Cells cells) const {
    std::string out = left(fmt::format("  {}", label), kLabel);
    for (const TokenCost* cost : costs_) {
      const auto [bytes, flop] = cells(*cost);
      out += right(bytes, kCell) + right(flop, kCell);
    }
    while (out.ends_with(' ')) out.pop_back();
    return out + "\n";
  }

  std::string row(std::string_view name) const {
    return row_of(name, [name](const TokenCost& cost) {
      const auto at = std::find_if(cost.parts.begin(), cost.parts.end(),
                                   [name](const PartCost& part) { return part.name == name; });
      if (at == cost.parts.end()) return std::pair(std::string("-"), std::string("-"));
      return std::pair(format_cost(at->bytes), at->flop > 0 ? format_flop(at->flop) : "-");
    });
  }

  std::string total() const {
    return paint_(Paint::kBold, row_of("together", [](const TokenCost& cost) {
                    return std::pair(format_cost(cost.bytes), format_flop(cost.flop));
                  }));
  }

  std::string bounds() const {
    const MachineSpeed& speed = roofline_.speed;
    if (speed.bytes_per_second == 0 && speed.flop_per_second == 0) {
      return "  tokens/s: give --bandwidth GB/s and --peak GFLOP/s, or --measure them here\n";
    }
    std::string out = row_of("tokens/s", [this](const TokenCost& cost) {
      const RateBound bound = rate_bound(cost, roofline_.speed, plan_.parallel.shape.dp);
      return std::pair(fmt::format("{:.1f}", bound.tokens_per_second),
                       std::string(bound.by_memory ? "by memory" : "by FLOP"));
    });
    const auto known = [](double value, const char* unit) {
      return value > 0 ? fmt::format("{:.1f} {}", value * 1e-9, unit)
                       : fmt::format("unknown {}", unit);
    };
    return out + fmt::format("  at most, at {} and {} of each rank ({})\n",
                             known(speed.bytes_per_second, "GB/s"),
                             known(speed.flop_per_second, "GFLOP/s"),
                             roofline_.measured ? "measured here" : "as given");
  }

  const ModelPlan& plan_;
  const RooflinePlan& roofline_;
  const Painter& paint_;
  std::array<const TokenCost*, 3> costs_;
};

}  // namespace

std::string draw_ranks(const ModelPlan& plan, const Painter& paint) {
  std::array<std::string, kRankColumns.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kRankColumns[i].name;
  std::string out = paint(Paint::kBold, describe_parallel(plan.parallel)) + "\n";
  out += paint(Paint::kDim, rank_row(names));
  for (const RankGroup& group : fold_ranks(plan.ranks)) out += rank_row(group);
  return out;
}

std::string draw_roofline(const ModelPlan& plan, const Painter& paint) {
  std::string out =
      paint(Paint::kBold,
            fmt::format("What a token costs {}at least, {} tokens into its sequence",
                        plan.rank_count() == 1 ? "" : "the fullest rank ", plan.roofline.context));
  return out + "\n" + RooflineTable(plan, paint).draw();
}

}  // namespace rota

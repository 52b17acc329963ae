// The drawing of a row's way through a mixture layer: a column for each stage, two bands.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "rota/model_plan.h"

namespace rota {
namespace {

constexpr int kLabelColumns = 12;
constexpr int kWidestStage = 17;
constexpr int kArrowColumns = 4;  // " ─▶ " at least

// What a stage does with the row, in two words.
std::string_view what_happens(std::string_view stage) {
  static constexpr std::array<std::array<std::string_view, 2>, 14> kWords = {{
      {"router_in", "is routed"},
      {"latent_in", "narrows"},
      {"dispatch", "is sent"},
      {"experts_in", "goes in"},
      {"intermediate", "is inside"},
      {"experts_out", "comes out"},
      {"combine", "is summed"},
      {"cut", "is cut"},
      {"reduce", "is reduced"},
      {"latent_out", "widens"},
      {"shared_in", "came whole"},
      {"shared_reduce", "is reduced"},
      {"shared_add", "is added"},
      {"final", "goes on"},
  }};
  const auto at =
      std::find_if(kWords.begin(), kWords.end(), [&](const auto& one) { return one[0] == stage; });
  return at == kWords.end() ? "" : (*at)[1];
}

// Who padded, in a word that fits under a stage; the legend says the rest.
std::string_view short_name(const WidthStep& step) {
  if (step.padded_by.empty()) return "";
  if (step.padded_by == "--moe-hidden-alignment") return "hidden flag";
  if (step.padded_by == "--moe-intermediate-alignment") return "inner flag";
  return step.name == "dispatch" || step.name == "combine" ? "transport" : "backend";
}

class Band {
 public:
  Band(std::span<const WidthStep> steps, int64_t widest, const Painter& paint)
      : steps_(steps), widest_(widest), paint_(paint) {
    const int count = static_cast<int>(steps.size());
    column_ = std::min(kWidestStage, (kDrawingColumns - kLabelColumns) / std::max(1, count));
  }

  std::string draw(bool goes_on) const {
    std::string out = line("stage", Paint::kBold, [](const WidthStep& s) { return s.name; });
    out += left("", kLabelColumns);
    for (const WidthStep& step : steps_) {
      out += bar(step, goes_on || &step != &steps_.back());
    }
    while (out.ends_with(' ')) out.pop_back();
    out += '\n';
    out += line("the row", Paint::kDim, [](const WidthStep& s) { return what_happens(s.name); });
    out += line("logical", Paint::kMeant,
                [](const WidthStep& s) { return fmt::format("{}", s.width.logical()); });
    out += line("padded", Paint::kPadding, [](const WidthStep& s) {
      return s.width.is_padded() ? fmt::format("{}", s.width.padded()) : "-";
    });
    if (std::none_of(steps_.begin(), steps_.end(),
                     [](const WidthStep& s) { return s.width.is_padded(); })) {
      return out;
    }
    out += line("who pads", Paint::kPlain, short_name);
    out += line("who cuts", Paint::kPlain, [](const WidthStep& s) { return s.cut_by; });
    return out;
  }

 private:
  template <typename Text>
  std::string line(std::string_view label, Paint paint, Text text) const {
    std::string out = paint_(Paint::kDim, left(fmt::format("  {}", label), kLabelColumns));
    for (const WidthStep& step : steps_) {
      out += paint_(paint, left(std::string(text(step)), column_));
    }
    while (out.ends_with(' ')) out.pop_back();
    return out + "\n";
  }

  // As long as the width is wide, against the widest of the layer; padding shows however small.
  std::string bar(const WidthStep& step, bool arrow) const {
    const int64_t room = column_ - kArrowColumns;
    const int64_t padding =
        step.width.is_padded()
            ? std::max<int64_t>(1, (step.width.padded() - step.width.logical()) * room / widest_)
            : 0;
    const int64_t meant =
        std::clamp<int64_t>(step.width.logical() * room / widest_, 1, room - padding);
    std::string out = paint_(Paint::kMeant, repeat(paint_.full(), meant)) +
                      paint_(Paint::kPadding, repeat(paint_.light(), padding));
    if (!arrow) return out;
    const int64_t dashes = column_ - meant - padding - 3;
    return out + " " +
           paint_(Paint::kDim, repeat(paint_.line(), dashes) + std::string(paint_.head())) + " ";
  }

  std::span<const WidthStep> steps_;
  int64_t widest_;
  const Painter& paint_;
  int column_ = 0;
};

constexpr int kReasonIndent = 22;

// One line for each who that the bands name.
std::string legend(std::span<const WidthStep> steps) {
  std::string out;
  std::set<std::string> told;
  for (const WidthStep& step : steps) {
    if (step.padded_by.empty() || !told.insert(step.padded_by).second) continue;
    const std::string why = fmt::format("{}, {}", to_string(step.width), step.reason);
    out += fmt::format("  {} pads:  {}\n", left(short_name(step), 12),
                       wrap(why, kReasonIndent, kDrawingColumns));
  }
  for (const WidthStep& step : steps) {
    if (step.cut_by.empty() || !told.insert(std::string(step.cut_by)).second) continue;
    out += fmt::format("  {} cuts:  {}\n", left(step.cut_by, 12), describe_cut(step.cut_by));
  }
  return out;
}

}  // namespace

std::string draw_widths(const std::vector<WidthStep>& steps, const Painter& paint) {
  int64_t widest = 1;
  for (const WidthStep& step : steps) widest = std::max(widest, step.width.padded());
  const auto turn = std::find_if(steps.begin(), steps.end(),
                                 [](const WidthStep& s) { return s.name == "combine"; });
  const std::span<const WidthStep> out(steps.begin(), turn);
  const std::span<const WidthStep> back(turn, steps.end());
  const std::string notes = legend(steps);
  return fmt::format("\n{}\n{}{}{}", Band(out, widest, paint).draw(true),
                     Band(back, widest, paint).draw(false), notes.empty() ? "" : "\n", notes);
}

}  // namespace rota

#include "engine/expert_balancer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/hash.h"
#include "engine/load_agreement.h"
#include "moe/balance_experts.h"

namespace rota {
namespace {

// A layer whose fullest rank has less than this times the mean stays as it is, and so does one that
// would win less than kLeastGain of the mean: tokens of the next window differ by more.
constexpr double kUneven = 1.05;
constexpr double kLeastGain = 0.02;

}  // namespace

ExpertBalancer::ExpertBalancer(std::vector<MoeLayer*> layers, Communicator& control,
                               ThreadTeam& team, const BalancerOptions& options)
    : layers_(std::move(layers)),
      control_(&control),
      team_(&team),
      options_(options),
      slots_of_rank_(static_cast<size_t>(control.ranks())) {
  ROTA_CHECK(!layers_.empty() && map().ranks() == control.ranks(), "experts dealt to these ranks");
  ROTA_CHECK(1 <= options.window && options.window <= options.interval, "a window of an interval");
  for (int32_t slot = 0; slot < map().experts(); ++slot) {
    slots_of_rank_[static_cast<size_t>(map().owner(slot))].push_back(slot);
  }
  at_start_.reserve(layers_.size() * layers_.front()->served_here().size());
  seal();
  if (options_.window == options_.interval) begin_window();
}

Status ExpertBalancer::after_step() {
  if (!changes_.empty()) {
    ROTA_RETURN_IF_ERROR(change_one());
  } else if (++steps_ == options_.interval) {
    steps_ = 0;
    ROTA_RETURN_IF_ERROR(look());
  }
  if (changes_.empty() && steps_ == options_.interval - options_.window) begin_window();
  return {};
}

void ExpertBalancer::begin_window() {
  at_start_.clear();
  for (const MoeLayer* layer : layers_) {
    const std::span<const int64_t> served = layer->served_here();
    at_start_.insert(at_start_.end(), served.begin(), served.end());
  }
}

Status ExpertBalancer::look() {
  ROTA_ASSIGN_OR_RETURN(const Counts counts, gather_counts());
  ++stats_.looks;
  measure(counts);
  decide(counts);
  return {};
}

Result<ExpertBalancer::Counts> ExpertBalancer::gather_counts() {
  const auto ranks = slots_of_rank_.size();
  std::vector<int64_t> mine(at_start_.size());
  size_t next = 0;
  for (const MoeLayer* layer : layers_) {
    for (const int64_t served : layer->served_here()) {
      mine[next] = served - at_start_[next];
      ++next;
    }
  }
  std::vector<int64_t> begin(ranks + 1);
  for (size_t rank = 0; rank < ranks; ++rank) {
    begin[rank + 1] =
        begin[rank] +
        static_cast<int64_t>(layers_.size() * slots_of_rank_[rank].size() * sizeof(int64_t));
  }
  std::vector<int64_t> all(static_cast<size_t>(begin.back()) / sizeof(int64_t));
  ROTA_RETURN_IF_ERROR(control_->all_gather(
      std::as_bytes(std::span(mine)), {std::as_writable_bytes(std::span(all)).data(), begin}));
  Counts counts{.of_expert = std::vector<int64_t>(layers_.size() * static_cast<size_t>(experts())),
                .of_rank = std::vector<int64_t>(layers_.size() * ranks)};
  next = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      for (const int32_t slot : slots_of_rank_[rank]) {
        const int64_t tokens = all[next++];
        const auto expert = static_cast<size_t>(layers_[layer]->slots()->expert(slot));
        counts.of_expert[layer * static_cast<size_t>(experts()) + expert] += tokens;
        counts.of_rank[layer * ranks + rank] += tokens;
      }
    }
  }
  return counts;
}

// A layer takes as long as its fullest rank: the sum of those over the sum of the means.
void ExpertBalancer::measure(const Counts& counts) {
  double fullest = 0;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    fullest += static_cast<double>(std::ranges::max(of_layer(counts.of_rank, layer)));
  }
  const double sum = static_cast<double>(
      std::accumulate(counts.of_rank.begin(), counts.of_rank.end(), int64_t{0}));
  if (sum > 0) stats_.imbalance = fullest * static_cast<double>(slots_of_rank_.size()) / sum;
}

void ExpertBalancer::decide(const Counts& counts) {
  for (size_t layer = layers_.size(); layer-- > 0;) {
    const ExpertSlots& now = *layers_[layer]->slots();
    const std::span<const int64_t> tokens = of_layer(counts.of_expert, layer);
    // Fewer say nothing of the next ones.
    if (std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) < now.slots()) continue;
    const double before = load_imbalance(map(), now, tokens);
    if (before < kUneven) continue;
    ExpertSlots better = balance_experts(map(), now, tokens);
    if (load_imbalance(map(), better, tokens) > before - kLeastGain) continue;
    changes_.push_back({.layer = layer, .slots = std::move(better)});
  }
  if (changes_.empty()) return;
  log::info(
      "experts: in the last {} steps the fullest rank of a layer had {:.2f} times the mean; {} of "
      "{} "
      "layers are rearranged",
      options_.window, stats_.imbalance, changes_.size(), layers_.size());
}

Status ExpertBalancer::change_one() {
  const Change change = std::move(changes_.back());
  changes_.pop_back();
  MoeLayer& layer = *layers_[change.layer];
  stats_.moves += change.slots.differences(*layer.slots());
  const Status mine = layer.place(change.slots, *team_);
  ROTA_ASSIGN_OR_RETURN(const std::vector<int64_t> failed,
                        gather_values(*control_, int64_t{mine.ok() ? 0 : 1}));
  ROTA_RETURN_IF_ERROR(mine.with_context("taking over experts"));
  const auto first = std::ranges::find(failed, 1);
  if (first != failed.end()) {
    return error(StatusCode::kUnavailable, "rank {} could not take over its experts: see its log",
                 first - failed.begin());
  }
  seal();
  return {};
}

void ExpertBalancer::seal() {
  placement_ = kHashStart;
  stats_.held.clear();
  for (const MoeLayer* layer : layers_) {
    placement_ = hash_bytes(std::as_bytes(layer->slots()->expert_of_slot()), placement_);
    stats_.held.push_back(held(*layer->slots()));
  }
}

std::vector<std::vector<int32_t>> ExpertBalancer::held(const ExpertSlots& slots) const {
  std::vector<std::vector<int32_t>> of_rank;
  of_rank.reserve(slots_of_rank_.size());
  for (const std::vector<int32_t>& mine : slots_of_rank_) {
    std::vector<int32_t>& experts = of_rank.emplace_back();
    experts.reserve(mine.size());
    for (const int32_t slot : mine) experts.push_back(slots.expert(slot));
    std::ranges::sort(experts);
  }
  return of_rank;
}

}  // namespace rota

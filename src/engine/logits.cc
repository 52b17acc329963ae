#include "engine/logits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace rota {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// Independent lanes: without them a maximum or a sum of floats is one long chain of dependencies.
constexpr size_t kLanes = 16;
// Beyond this many a heap is slower than partitioning the row.
constexpr int64_t kLargestHeap = 1024;

void set_logit(std::span<float> row, int32_t token, float value) {
  row[static_cast<size_t>(token)] = value;
}

void ban_stop_tokens(const SamplingParams& params, const TokenHistory& history,
                     std::span<float> row) {
  const auto generated = static_cast<int64_t>(history.tokens.size()) - history.prompt_tokens;
  if (generated >= params.min_tokens) return;
  for (const int32_t token : history.stop_tokens) set_logit(row, token, kMinusInfinity);
}

// Every token of the prompt or the output once; > 0 is divided, <= 0 multiplied (Keskar et al.
// 2019).
void apply_repetition_penalty(float penalty, std::span<const int32_t> tokens, std::span<float> row,
                              std::span<int32_t> counts) {
  for (const int32_t token : tokens) {
    if (counts[static_cast<size_t>(token)]++ > 0) continue;
    float& logit = row[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  for (const int32_t token : tokens) counts[static_cast<size_t>(token)] = 0;
}

// Of the output alone: logit - frequency * count - presence.
void apply_count_penalties(const SamplingParams& params, std::span<const int32_t> generated,
                           std::span<float> row, std::span<int32_t> counts) {
  for (const int32_t token : generated) ++counts[static_cast<size_t>(token)];
  for (const int32_t token : generated) {
    int32_t& count = counts[static_cast<size_t>(token)];
    if (count == 0) continue;
    float& logit = row[static_cast<size_t>(token)];
    logit -= static_cast<float>(params.frequency_penalty * count);
    logit -= static_cast<float>(params.presence_penalty);
    count = 0;
  }
}

int64_t rank_of(std::span<const float> row, int32_t token) {
  const float logit = row[static_cast<size_t>(token)];
  int64_t before = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    before += row[i] > logit || (row[i] == logit && static_cast<int32_t>(i) < token) ? 1 : 0;
  }
  return before + 1;
}

}  // namespace

RowMaximum row_maximum(std::span<const float> row) {
  std::array<float, kLanes> best;
  best.fill(kMinusInfinity);
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = row[i + lane] > best[lane] ? row[i + lane] : best[lane];
    }
  }
  float maximum = *std::max_element(best.begin(), best.end());
  for (; i < row.size(); ++i) maximum = std::max(maximum, row[i]);
  const auto first = std::find(row.begin(), row.end(), maximum);
  return {.token = static_cast<int32_t>(first == row.end() ? 0 : first - row.begin()),
          .logit = maximum};
}

bool all_finite(std::span<const float> row) {
  std::array<float, kLanes> zeros{};  // 0 * x is 0 for every finite x
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) zeros[lane] += 0.0f * row[i + lane];
  }
  for (; i < row.size(); ++i) zeros[0] += 0.0f * row[i];
  return std::all_of(zeros.begin(), zeros.end(), [](float zero) { return zero == 0; });
}

double log_sum_exp(std::span<const float> row, float maximum) {
  double sum = 0;
  for (const float logit : row) sum += static_cast<double>(std::exp(logit - maximum));
  return static_cast<double>(maximum) + std::log(sum);
}

void select_top(std::span<const float> row, int64_t n, std::vector<Candidate>& out) {
  const auto count =
      static_cast<size_t>(std::clamp<int64_t>(n, 0, static_cast<int64_t>(row.size())));
  out.clear();
  if (count == 0) return;
  const bool heap = n <= kLargestHeap;
  for (size_t i = 0; i < row.size(); ++i) {
    const Candidate candidate{row[i], static_cast<int32_t>(i)};
    if (!heap || out.size() < count) {
      out.push_back(candidate);
      if (heap) std::push_heap(out.begin(), out.end());  // its front is the least likely
    } else if (candidate < out.front()) {
      std::pop_heap(out.begin(), out.end());
      out.back() = candidate;
      std::push_heap(out.begin(), out.end());
    }
  }
  if (!heap && count < out.size()) {
    std::nth_element(out.begin(), out.begin() + static_cast<int64_t>(count), out.end());
    out.resize(count);
  }
  std::sort(out.begin(), out.end());
}

PositionLogprobs position_logprobs(std::span<const float> row, int32_t token, int64_t n,
                                   std::vector<Candidate>& scratch) {
  // JSON has no -inf; vLLM's floor.
  constexpr double kFloor = -9999.0;
  const double normaliser = log_sum_exp(row, row_maximum(row).logit);
  const auto logprob = [&](float logit) {
    return static_cast<float>(std::max(static_cast<double>(logit) - normaliser, kFloor));
  };
  select_top(row, n, scratch);
  PositionLogprobs all;
  all.reserve(scratch.size() + 1);
  all.push_back({token, logprob(row[static_cast<size_t>(token)]), rank_of(row, token)});
  for (size_t i = 0; i < scratch.size(); ++i) {
    all.push_back({scratch[i].token, logprob(scratch[i].logit), static_cast<int64_t>(i) + 1});
  }
  return all;
}

void apply_logits_processors(const SamplingParams& params, const TokenHistory& history,
                             std::span<float> row, std::span<int32_t> counts) {
  ban_stop_tokens(params, history, row);
  for (const auto& [token, bias] : params.logit_bias) {
    row[static_cast<size_t>(token)] += static_cast<float>(bias);
  }
  if (params.repetition_penalty != 1.0) {
    apply_repetition_penalty(static_cast<float>(params.repetition_penalty), history.tokens, row,
                             counts);
  }
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    apply_count_penalties(
        params, history.tokens.subspan(static_cast<size_t>(history.prompt_tokens)), row, counts);
  }
}

}  // namespace rota

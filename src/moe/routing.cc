#include "moe/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rota {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float score_of(float value) { return std::isnan(value) ? kLowest : value; }

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// The best k seen so far, best first; `ids` and `scores` are the caller's. Offered in rising order
// of id, the lower id stays in front among equals.
class BestOf {
 public:
  BestOf(std::span<int32_t> ids, std::span<float> scores) : ids_(ids), scores_(scores) {}

  void offer(int32_t id, float score) {
    if (count_ == ids_.size() && !(score > scores_[count_ - 1])) return;
    size_t at = count_ < ids_.size() ? count_++ : count_ - 1;
    for (; at > 0 && score > scores_[at - 1]; --at) {
      ids_[at] = ids_[at - 1];
      scores_[at] = scores_[at - 1];
    }
    ids_[at] = id;
    scores_[at] = score;
  }

 private:
  std::span<int32_t> ids_;
  std::span<float> scores_;
  size_t count_ = 0;
};

void divide_by_sum(std::span<float> weights) {
  float sum = 0;
  for (const float weight : weights) sum += weight;
  for (float& weight : weights) weight /= sum;
}

void scale(std::span<float> weights, float factor) {
  if (factor == 1.0f) return;
  for (float& weight : weights) weight *= factor;
}

// Chooses by logit; weights hold the chosen logits.
void choose_by_logit(std::span<const float> logits, std::span<int32_t> ids,
                     std::span<float> weights) {
  BestOf best(ids, weights);
  for (size_t e = 0; e < logits.size(); ++e) {
    best.offer(static_cast<int32_t>(e), score_of(logits[e]));
  }
}

void topk_softmax(std::span<const float> logits, std::span<int32_t> ids, std::span<float> weights) {
  choose_by_logit(logits, ids, weights);
  const float largest = weights[0];
  for (float& weight : weights) weight = std::exp(weight - largest);
  divide_by_sum(weights);
}

// The softmax rises with the logit, so choosing by logit is choosing by probability.
void softmax_topk(const RouterConfig& config, std::span<const float> logits, std::span<int32_t> ids,
                  std::span<float> weights) {
  choose_by_logit(logits, ids, weights);
  const float largest = weights[0];
  float sum = 0;
  for (const float logit : logits) sum += std::exp(score_of(logit) - largest);
  for (float& weight : weights) weight = std::exp(weight - largest) / sum;
  if (config.renormalise) divide_by_sum(weights);
}

// Sum of a group's two best choice scores (of its only one, in groups of one).
float group_score(std::span<const float> logits, std::span<const float> bias, size_t first,
                  size_t count) {
  float best = kLowest, second = kLowest;
  for (size_t e = first; e < first + count; ++e) {
    const float score = score_of(sigmoid(logits[e]) + (bias.empty() ? 0.0f : bias[e]));
    if (score > best) {
      second = best;
      best = score;
    } else if (score > second) {
      second = score;
    }
  }
  return count == 1 ? best : best + second;
}

// Bit g: group g may be chosen from.
uint64_t kept_groups(const RouterConfig& config, std::span<const float> logits,
                     std::span<const float> bias) {
  if (config.groups_kept >= config.groups) return ~uint64_t{0};
  const auto groups = static_cast<size_t>(config.groups);
  const size_t each = logits.size() / groups;
  int32_t ids[kMaxRouterGroups];
  float scores[kMaxRouterGroups];
  const auto kept = static_cast<size_t>(config.groups_kept);
  BestOf best({ids, kept}, {scores, kept});
  for (size_t g = 0; g < groups; ++g) {
    best.offer(static_cast<int32_t>(g), group_score(logits, bias, g * each, each));
  }
  uint64_t mask = 0;
  for (size_t i = 0; i < kept; ++i) mask |= uint64_t{1} << ids[i];
  return mask;
}

void sigmoid_bias_groups(const RouterConfig& config, std::span<const float> logits,
                         std::span<const float> bias, std::span<int32_t> ids,
                         std::span<float> weights) {
  const uint64_t kept = kept_groups(config, logits, bias);
  const size_t each = logits.size() / static_cast<size_t>(config.groups);
  BestOf best(ids, weights);
  for (size_t e = 0; e < logits.size(); ++e) {
    if (((kept >> (e / each)) & 1u) == 0) continue;
    best.offer(static_cast<int32_t>(e),
               score_of(sigmoid(logits[e]) + (bias.empty() ? 0.0f : bias[e])));
  }
  // The bias chooses; it is no part of the weight.
  for (size_t i = 0; i < ids.size(); ++i) weights[i] = sigmoid(logits[static_cast<size_t>(ids[i])]);
  if (config.renormalise) divide_by_sum(weights);
}

}  // namespace

Status check_router(const RouterConfig& config) {
  if (config.experts < 1 || config.top_k < 1 || config.top_k > config.experts) {
    return invalid_argument("router: top-{} of {} experts; expected 1 <= top-k <= experts",
                            config.top_k, config.experts);
  }
  if (config.groups < 1 || config.groups > kMaxRouterGroups ||
      config.experts % config.groups != 0) {
    return invalid_argument(
        "router: {} groups of {} experts; expected 1 to {} groups of equal size", config.groups,
        config.experts, kMaxRouterGroups);
  }
  const int64_t choosable = config.experts / config.groups * config.groups_kept;
  if (config.groups_kept < 1 || config.groups_kept > config.groups || config.top_k > choosable) {
    return invalid_argument(
        "router: top-{} out of {} of {} groups of {} experts; expected enough experts to choose "
        "from",
        config.top_k, config.groups_kept, config.groups, config.experts / config.groups);
  }
  return {};
}

void route_token(const RouterConfig& config, std::span<const float> logits,
                 std::span<const float> correction_bias, std::span<int32_t> ids,
                 std::span<float> weights) {
  switch (config.kind) {
    case RouterKind::kTopkSoftmax:
      topk_softmax(logits, ids, weights);
      break;
    case RouterKind::kSoftmaxTopk:
      softmax_topk(config, logits, ids, weights);
      break;
    case RouterKind::kSigmoidBiasGroups:
      sigmoid_bias_groups(config, logits, correction_bias, ids, weights);
      break;
  }
  scale(weights, config.scaling_factor);
}

void route(const RouterConfig& config, MatrixView<const float> logits,
           std::span<const float> correction_bias, std::span<int32_t> ids,
           std::span<float> weights) {
  const auto k = static_cast<size_t>(config.top_k);
  for (int64_t t = 0; t < logits.rows(); ++t) {
    const size_t at = static_cast<size_t>(t) * k;
    route_token(config, logits.row(t), correction_bias, ids.subspan(at, k), weights.subspan(at, k));
  }
}

}  // namespace rota

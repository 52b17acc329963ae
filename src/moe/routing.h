// Logits in, chosen experts and their weights out.
//
//   topk_softmax         top k of the logits, then softmax over the chosen (gpt-oss)
//   softmax_topk         softmax over all, then the top k, renormalised or not (mixtral, qwen3)
//   sigmoid_bias_groups  scores = sigmoid(logits); chosen by score + correction bias, out of the
//                        groups whose two best sum highest; weights are the scores (deepseek,
//                        nemotron)
// Slots are in order of falling score (biased, where there is a bias); among equal scores the lower
// expert comes first; NaN is lowest. A token's result depends on its own logits alone.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "moe/config.h"
#include "tensor/matrix.h"

namespace rota {

inline constexpr int64_t kMaxRouterGroups = 64;

// ids, weights [T, k], seen. An id is a global expert number.
struct TopK {
  const int32_t* ids = nullptr;
  const float* weights = nullptr;
  int64_t tokens = 0;
  int64_t k = 0;

  std::span<const int32_t> ids_of(int64_t token) const {
    return {ids + token * k, static_cast<size_t>(k)};
  }
  std::span<const float> weights_of(int64_t token) const {
    return {weights + token * k, static_cast<size_t>(k)};
  }
  TopK range(int64_t first, int64_t count) const {
    return {ids + first * k, weights + first * k, count, k};
  }
};

// 1 <= top_k <= experts, groups divide the experts, enough experts in the kept groups.
Status check_router(const RouterConfig& config);

// One token. logits [E]; correction_bias [E] or empty; ids, weights [k]. Does not allocate.
void route_token(const RouterConfig& config, std::span<const float> logits,
                 std::span<const float> correction_bias, std::span<int32_t> ids,
                 std::span<float> weights);

// logits [T, E]; ids, weights [T, k].
void route(const RouterConfig& config, MatrixView<const float> logits,
           std::span<const float> correction_bias, std::span<int32_t> ids,
           std::span<float> weights);

}  // namespace rota

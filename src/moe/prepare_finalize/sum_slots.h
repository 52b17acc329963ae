// Finalize: out = the sum of weight * row over a token's slots, in slot order, whatever rank a row
// came from. One function for all kinds: the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/kernels.h"
#include "moe/prepare_finalize.h"
#include "moe/routing.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

// fn(item) for [0, items), shared out in blocks.
template <typename Fn>
void for_blocks(ThreadTeam& team, int64_t items, Fn&& fn) {
  constexpr int64_t kBlock = 8;
  team.parallel_for((items + kBlock - 1) / kBlock, [&](int64_t block, int) {
    const int64_t end = std::min(items, (block + 1) * kBlock);
    for (int64_t item = block * kBlock; item < end; ++item) fn(item);
  });
}

// The combine's buffer is as wide as the experts' output (R4).
inline void check_width(const ExpertsOutput& experts, MatrixView<const float> out) {
  ROTA_CHECK(out.width().logical() == experts.rows.width().logical(),
             "the combine buffer is as wide as the experts' output");
}

// row_of(slot): the experts' output, as wide as `out`, or nothing: adds nothing.
template <typename RowOf>
void sum_slots(const PrepareFinalizeSizing& with, const TopK& topk, RowOf&& row_of,
               MatrixView<float> out) {
  ROTA_CHECK(topk.tokens == out.rows(), "a row out for each token");
  for_blocks(*with.team, topk.tokens, [&](int64_t token) {
    const std::span<float> sum = out.row(token);
    std::fill(sum.begin(), sum.end(), 0.0f);
    const std::span<const float> weights = topk.weights_of(token);
    for (int64_t s = 0; s < topk.k; ++s) {
      const std::optional<std::span<const float>> row = row_of(token * topk.k + s);
      if (row) with.kernels->add_scaled(sum, weights[static_cast<size_t>(s)], *row);
    }
  });
}

}  // namespace rota

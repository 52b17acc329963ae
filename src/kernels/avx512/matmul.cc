// The AVX-512 matmul in float32 FMA, for CPUs without the BF16 dot product and for
// Compute::kFloat32; kInt8 is in matmul_int8.cc.
#include "kernels/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/avx512/avx512_kernels.h"
#include "kernels/avx512/input_kind.h"
#include "kernels/avx512/matmul_in_out.h"
#include "kernels/avx512/matmul_loops.h"

namespace rota::ROTA_AVX512 {
namespace {

struct FloatTile : TileShape {
  using Code = Plain;
  static constexpr int kTokens = 4;
  static constexpr int64_t kStep = 16;
  static constexpr int64_t kElementBytes = 4;
  static constexpr int64_t kInputBytes = 4;
  static constexpr int64_t kRowBlock = 24;
  static constexpr bool kDecodesInTile = false;

  template <int kGroup>
  static void tile(const std::byte* const* rows, const std::byte* x, int64_t x_stride,
                   int64_t steps, Acc* acc, bool fresh) {
    Acc sums[kGroup][kRows];
    load_sums<kGroup>(acc, fresh, sums);
    for (int64_t s = 0; s < steps; ++s) {
      __m512 input[kGroup];
      for (int t = 0; t < kGroup; ++t) {
        input[t] = _mm512_load_ps(reinterpret_cast<const float*>(x + t * x_stride) + s * 16);
      }
      for (int r = 0; r < kRows; ++r) {
        const __m512 weight = _mm512_loadu_ps(reinterpret_cast<const float*>(rows[r]) + s * 16);
        for (int t = 0; t < kGroup; ++t) {
          sums[t][r] = _mm512_fmadd_ps(weight, input[t], sums[t][r]);
        }
      }
    }
    store_sums<kGroup>(sums, acc);
  }
};

}  // namespace

InputLayout input_layout(const WeightMatrix& weights, Compute compute) {
  if (compute == Compute::kInt8) return int8_input_layout(weights);
  InputKind kind = kFloatsInOrder;
  const bool in_out = weights.order == WeightOrder::kInOut;
  if (is_e2m1(weights.format)) {
    kind = kFloatsE2m1;
  } else if (weights.format != WeightFormat::kFloat32 && !in_out) {
    kind = kFloatsBf16;
  }
  return layout_of(kind, weights.in);
}

int64_t column_granularity(const WeightMatrix& weights, Compute compute) {
  if (compute == Compute::kInt8) return int8_columns();
  return weights.order == WeightOrder::kInOut ? 32 : 12;  // a cache line; the rows of either tile
}

Bytes matmul_scratch_bytes(Extent) {
  return {std::max({kWordScratchBytes<FloatDot>, MatmulDriver<FloatTile>::kScratchBytes,
                    kInOutScratchBytes, int8_scratch()})};
}

void matmul(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  ROTA_DCHECK(static_cast<int64_t>(args.scratch.size()) >= matmul_scratch_bytes(weights.in).count,
              "matmul needs more scratch");
  ROTA_DCHECK(args.input.layout.kind == input_layout(weights, args.input.compute).kind,
              "the input was prepared for another weight format");
  if (args.input.compute == Compute::kInt8) return matmul_int8(args);
  if (weights.order == WeightOrder::kInOut) return multiply_in_out<FloatColumns>(args);
  if (weights.format == WeightFormat::kFloat32) return MatmulDriver<FloatTile>(args).run();
  multiply_words<FloatDot>(args);
}

}  // namespace rota::ROTA_AVX512

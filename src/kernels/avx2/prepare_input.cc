// Brings activations into the order in which words.h makes weights, rounded to the compute type.
#include <immintrin.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/avx2/avx2_kernels.h"
#include "kernels/avx2/matmul_tiles.h"

namespace rota::avx2 {
namespace {

// As to_bf16(): nearest even, NaN stays NaN.
__m256 round_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  return _mm256_castsi256_ps(
      _mm256_and_si256(chosen, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

void order_in_order(const float* from, float* to) {
  for (int i = 0; i < kInputStep; i += 8) _mm256_store_ps(to + i, _mm256_loadu_ps(from + i));
}

void order_bf16_words(const float* from, float* to) {
  for (int i = 0; i < kInputStep; i += 16) {
    const __m256 low = _mm256_loadu_ps(from + i);
    const __m256 high = _mm256_loadu_ps(from + i + 8);
    const auto in_order = [](__m256 v) {
      return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
    };
    _mm256_store_ps(to + i, in_order(_mm256_shuffle_ps(low, high, 0x88)));
    _mm256_store_ps(to + i + 8, in_order(_mm256_shuffle_ps(low, high, 0xdd)));
  }
}

void order_e2m1_words(const float* from, float* to) {
  for (int i = 0; i < kInputStep; i += 16) {
    __m128 column[4];  // k = 0 4 8 12, 1 5 9 13, 2 6 10 14, 3 7 11 15
    for (int r = 0; r < 4; ++r) column[r] = _mm_loadu_ps(from + i + r * 4);
    _MM_TRANSPOSE4_PS(column[0], column[1], column[2], column[3]);
    for (int c = 0; c < 4; ++c) _mm_store_ps(to + i + c * 4, column[c]);
  }
}

void order(int kind, const float* from, float* to) {
  if (kind == kE2m1Words) return order_e2m1_words(from, to);
  if (kind == kBf16Words) return order_bf16_words(from, to);
  order_in_order(from, to);
}

void prepare_row(const float* from, int64_t count, int64_t padded, int kind, Compute compute,
                 float* to) {
  for (int64_t k = 0; k < padded; k += kInputStep) {
    alignas(32) float step[kInputStep] = {};
    std::copy_n(from + k, std::clamp<int64_t>(count - k, 0, kInputStep), step);
    if (compute == Compute::kBf16) {
      for (int i = 0; i < kInputStep; i += 8) {
        _mm256_store_ps(step + i, round_to_bf16(_mm256_load_ps(step + i)));
      }
    }
    order(kind, step, to + k);
  }
}

}  // namespace

InputLayout input_layout(const WeightMatrix& weights, Compute compute) {
  if (compute == Compute::kInt8) return int8_input_layout(weights);
  int kind = kInOrder;
  const bool in_out = weights.order == WeightOrder::kInOut;
  if (is_e2m1(weights.format)) {
    kind = kE2m1Words;
  } else if (weights.format != WeightFormat::kFloat32 && !in_out) {
    kind = kBf16Words;
  }
  // An odd number of cache lines, so that the same element of many tokens does not fall into the
  // same few sets of the L1 cache.
  const int64_t line = static_cast<int64_t>(kCacheLine);
  const int64_t lines = round_up(weights.in.padded(), kInputStep) * 4 / line;
  return {.kind = kind, .token_stride = {(lines | 1) * line}};
}

PreparedInput prepare_input(MatrixView<const float> x, std::span<const int32_t> rows, Extent in,
                            InputLayout layout, Compute compute, std::byte* prepared) {
  if (compute == Compute::kInt8) return prepare_int8_input(x, rows, in, layout, prepared);
  ROTA_DCHECK(x.width().logical() >= in.logical(), "the input is narrower than the weights");
  const int64_t tokens = rows.empty() ? x.rows() : static_cast<int64_t>(rows.size());
  const int64_t padded = round_up(in.padded(), kInputStep);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = rows.empty() ? t : rows.data()[t];
    prepare_row(x.data() + row * x.stride(), in.logical(), padded, layout.kind, compute,
                reinterpret_cast<float*>(prepared + t * layout.token_stride.count));
  }
  return {.data = prepared, .layout = layout, .compute = compute, .tokens = tokens};
}

}  // namespace rota::avx2

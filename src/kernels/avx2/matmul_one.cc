// AVX2, one token: bound by the memory that the weights come from, and nearly as much by decoding
// them. Four rows at a time, each with two sums, of the even and of the odd floats, as in
// matmul_many.cc: one sum a row makes a chain of additions too long to be hidden.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/avx2/matmul_tiles.h"
#include "kernels/avx2/words.h"
#include "tensor/extent.h"

namespace rota::avx2 {
namespace {

constexpr int kRows = 4;

struct RowSum {
  __m256 even, odd;
};
struct Sums {
  RowSum row[kRows];
};
constexpr Sums kZeroSums{};

// How far ahead of the reads memory is asked for: without it half the bandwidth, and the hardware
// does not see four short rows as one stream.
constexpr int64_t kPrefetchBytes = 6144;

// Rows first_row .. + 3; those beyond `end` repeat the last one.
struct RowPointers {
  const std::byte* row[kRows];
};
RowPointers rows_at(const std::byte* data, Bytes stride, int64_t first_row, int64_t end) {
  RowPointers rows;
  for (int r = 0; r < kRows; ++r) {
    rows.row[r] = data + std::min(first_row + r, end - 1) * stride.count;
  }
  return rows;
}

void write_out(const MatmulArgs& args, int64_t n, const Sums& sums) {
  alignas(16) float result[kRows];
  const auto sum = [&sums](int r) { return _mm256_add_ps(sums.row[r].even, sums.row[r].odd); };
  _mm_store_ps(result, reduce_four(sum(0), sum(1), sum(2), sum(3)));
  const Bf16* bias = args.weights->bias;
  for (int64_t r = 0; r < std::min<int64_t>(kRows, args.end_column - n); ++r) {
    args.out[n + r] = result[r] + (bias != nullptr ? to_float(bias[n + r]) : 0.0f);
  }
}

void add_words(__m256i words, const float* x, RowSum& sum) {
  sum.even = _mm256_fmadd_ps(even_floats(words), _mm256_load_ps(x), sum.even);
  sum.odd = _mm256_fmadd_ps(odd_floats(words), _mm256_load_ps(x + 8), sum.odd);
}

Sums multiply_bf16(RowPointers rows, const float* x, int64_t count, bool may_read_on) {
  Sums sums = kZeroSums;
  const int64_t steps = (count + (may_read_on ? 15 : 0)) / 16;
  const std::byte* ahead = rows.row[0] + kPrefetchBytes;
  for (int64_t s = 0; s < steps; ++s) {
    _mm_prefetch(ahead + s * 128, _MM_HINT_T0);
    _mm_prefetch(ahead + s * 128 + 64, _MM_HINT_T0);
    for (int r = 0; r < kRows; ++r)
      add_words(load_words(rows.row[r] + s * 32), x + s * 16, sums.row[r]);
  }
  const int64_t left = count - steps * 16;
  for (int r = 0; left > 0 && r < kRows; ++r) {
    alignas(32) uint16_t tail[16] = {};
    std::memcpy(tail, rows.row[r] + steps * 32, static_cast<size_t>(left) * 2);
    add_words(load_words(tail), x + steps * 16, sums.row[r]);
  }
  return sums;
}

void add_pair(__m256i codes, uint8_t scale_a, uint8_t scale_b, const float* x, RowSum& sum) {
  const FourWords four = decode_mxfp4_pair(codes, scale_a, scale_b);
  for (int w = 0; w < 4; ++w) add_words(four.words[w], x + w * 16, sum);
}

Sums multiply_mxfp4(RowPointers rows, RowPointers scale_rows, const float* x, int64_t blocks) {
  Sums sums = kZeroSums;
  const uint8_t* scales[kRows];
  for (int r = 0; r < kRows; ++r) scales[r] = reinterpret_cast<const uint8_t*>(scale_rows.row[r]);
  const std::byte* ahead = rows.row[0] + kPrefetchBytes;
  for (int64_t p = 0; p < blocks / 2; ++p) {
    _mm_prefetch(ahead + p * 128, _MM_HINT_T0);
    _mm_prefetch(ahead + p * 128 + 64, _MM_HINT_T0);
    for (int r = 0; r < kRows; ++r) {
      add_pair(load_words(rows.row[r] + p * 32), scales[r][2 * p], scales[r][2 * p + 1],
               x + p * kInputStep, sums.row[r]);
    }
  }
  for (int r = 0; blocks % 2 != 0 && r < kRows; ++r) {
    const auto* codes = reinterpret_cast<const uint8_t*>(rows.row[r]) + (blocks - 1) * 16;
    const uint8_t scale = scales[r][blocks - 1];
    add_pair(load_last_block(codes), scale, scale, x + blocks / 2 * kInputStep, sums.row[r]);
  }
  return sums;
}

}  // namespace

void multiply_one_bf16(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  const auto* x = reinterpret_cast<const float*>(args.input.data);
  const int64_t count = weights.in.logical();
  const bool may_read_on = weights.in.padded() >= round_up(count, 16);
  for (int64_t n = args.first_column; n < args.end_column; n += kRows) {
    const RowPointers rows = rows_at(weights.data, weights.row_stride, n, args.end_column);
    write_out(args, n, multiply_bf16(rows, x, count, may_read_on));
  }
}

void multiply_one_mxfp4(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  const auto* x = reinterpret_cast<const float*>(args.input.data);
  const int64_t blocks = round_up(weights.in.logical(), 32) / 32;
  for (int64_t n = args.first_column; n < args.end_column; n += kRows) {
    const RowPointers rows = rows_at(weights.data, weights.row_stride, n, args.end_column);
    const RowPointers scales = rows_at(reinterpret_cast<const std::byte*>(weights.scales),
                                       weights.scale_stride, n, args.end_column);
    write_out(args, n, multiply_mxfp4(rows, scales, x, blocks));
  }
}

}  // namespace rota::avx2

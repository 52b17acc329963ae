// The loops of the AVX-512 matmul over words (BF16, MXFP4) of order kOutIn, for either arithmetic
// of dot.h. Every element of the result is the sum that one accumulator of 16 lanes makes over K,
// reduced as words.h says, plus the bias: for one token and for many alike.
#pragma once

#include <algorithm>

#include "kernels/avx512/dot.h"
#include "kernels/matmul.h"
#include "kernels/matmul_driver.h"

namespace rota::ROTA_AVX512 {
namespace {

// 6 rows x 4 tokens: 24 of 32 registers hold sums. More of them collapses (4 x 7: a third of the
// speed).
struct TileShape {
  using Acc = __m512;
  static constexpr int kRows = 6;

  static void reduce(const Acc* acc, float* out) {
    const __m512 zero = _mm512_setzero_ps();
    _mm_storeu_ps(out, reduce_four(acc[0], acc[1], acc[2], acc[3]));
    alignas(16) float rest[4];
    _mm_store_ps(rest, reduce_four(acc[4], acc[5], zero, zero));
    out[4] = rest[0];
    out[5] = rest[1];
  }

  template <int kGroup>
  static void load_sums(const Acc* from, bool fresh, Acc (&sums)[kGroup][kRows]) {
    for (int t = 0; t < kGroup; ++t) {
      for (int r = 0; r < kRows; ++r) {
        sums[t][r] = fresh ? _mm512_setzero_ps() : from[t * kRows + r];
      }
    }
  }
  template <int kGroup>
  static void store_sums(const Acc (&sums)[kGroup][kRows], Acc* to) {
    for (int t = 0; t < kGroup; ++t) {
      for (int r = 0; r < kRows; ++r) to[t * kRows + r] = sums[t][r];
    }
  }
};

template <class Dot>
struct WordTile : TileShape {
  static constexpr int64_t kStep = 32;
  static constexpr int64_t kDecodeStep = 32;
  static constexpr int64_t kElementBytes = 2;
  static constexpr int64_t kInputBytes = Dot::kInputBytes;
  static constexpr int kTokens = Dot::kTokens;
  static constexpr int64_t kRowBlock = 24;
  static constexpr bool kDecodesInTile = true;

  static void decode_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                           std::byte* words) {
    for (int64_t b = 0; b < blocks; ++b) {
      _mm512_store_si512(words + b * 64, decode_block(codes + b * 16, scales[b]));
    }
  }

  template <int kGroup>
  static void tile(const std::byte* const* rows, const std::byte* x, int64_t x_stride,
                   int64_t steps, Acc* acc, bool fresh) {
    Acc sums[kGroup][kRows];
    load_sums<kGroup>(acc, fresh, sums);
    for (int64_t s = 0; s < steps; ++s) {
      typename Dot::Input input[kGroup];
      for (int t = 0; t < kGroup; ++t) input[t] = Dot::load(x + t * x_stride);
      for (int r = 0; r < kRows; ++r) {
        const __m512i words = load_words(rows[r] + s * 64);
        for (int t = 0; t < kGroup; ++t) sums[t][r] = Dot::add(sums[t][r], words, input[t]);
      }
      x += kStep * kInputBytes;
    }
    store_sums<kGroup>(sums, acc);
  }

  // The first group of tokens: the same, and the decoded words are left in the panel for the others.
  // Rows 3 to 5 are addressed from the third: that saves the registers for six pointers each.
  template <int kGroup>
  static void decoding_tile(const Mxfp4Rows& rows, std::byte* panel, const std::byte* x,
                            int64_t x_stride, int64_t steps, Acc* acc, bool fresh) {
    constexpr int64_t kPanelStride = MatmulDriver<WordTile>::kKBlock * kElementBytes;
    Acc sums[kGroup][kRows];
    load_sums<kGroup>(acc, fresh, sums);
    const uint8_t *codes = rows.codes, *codes3 = codes + 3 * rows.code_stride;
    const uint8_t *scales = rows.scales, *scales3 = scales + 3 * rows.scale_stride;
    for (int64_t s = 0; s < steps; ++s) {
      typename Dot::Input input[kGroup];
      for (int t = 0; t < kGroup; ++t) input[t] = Dot::load(x + t * x_stride);
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* row = (r < 3 ? codes : codes3) + r % 3 * rows.code_stride;
        const uint8_t scale = (r < 3 ? scales : scales3)[r % 3 * rows.scale_stride];
        const __m512i words = decode_block(row, scale);
        _mm512_store_si512(panel + r * kPanelStride, words);
        for (int t = 0; t < kGroup; ++t) sums[t][r] = Dot::add(sums[t][r], words, input[t]);
      }
      codes += 16, codes3 += 16, scales += 1, scales3 += 1;
      panel += 64;
      x += kStep * kInputBytes;
    }
    store_sums<kGroup>(sums, acc);
  }
};

constexpr int kOneRows = 4;  // rows of the loop for one token: as many chains of additions

// See avx2/matmul_few.cc: memory is asked for in the order it lies in, the next four rows.
constexpr int64_t kLeastBytesAhead = 5760;

struct OneSums {
  __m512 row[kOneRows];
};

// Rows first_row .. + 3; those beyond `end` repeat the last one.
struct RowPointers {
  const std::byte* row[kOneRows];
  const std::byte* ahead;  // the next four
};
inline RowPointers rows_at(const std::byte* data, Bytes stride, int64_t first_row, int64_t end) {
  RowPointers rows;
  for (int r = 0; r < kOneRows; ++r) {
    rows.row[r] = data + std::min(first_row + r, end - 1) * stride.count;
  }
  rows.ahead = rows.row[0] + std::max(kOneRows * stride.count, kLeastBytesAhead);
  return rows;
}

inline void write_one(const MatmulArgs& args, int64_t n, const OneSums& sums) {
  alignas(16) float result[kOneRows];
  _mm_store_ps(result, reduce_four(sums.row[0], sums.row[1], sums.row[2], sums.row[3]));
  const Bf16* bias = args.weights->bias;
  for (int64_t r = 0; r < std::min<int64_t>(kOneRows, args.end_column - n); ++r) {
    args.out[n + r] = result[r] + (bias != nullptr ? to_float(bias[n + r]) : 0.0f);
  }
}

template <class Dot>
OneSums multiply_bf16_rows(RowPointers rows, const std::byte* x, int64_t count, bool may_read_on) {
  OneSums sums;
  for (auto& sum : sums.row) sum = _mm512_setzero_ps();
  const int64_t steps = (count + (may_read_on ? 31 : 0)) / 32;
  for (int64_t s = 0; s < steps; ++s) {
    const typename Dot::Input input = Dot::load(x + s * 32 * Dot::kInputBytes);
    for (int r = 0; r < kOneRows; ++r) {
      _mm_prefetch(reinterpret_cast<const char*>(rows.ahead) + s * 256 + r * 64, _MM_HINT_T1);
      sums.row[r] = Dot::add(sums.row[r], load_words(rows.row[r] + s * 64), input);
    }
  }
  const int64_t left = count - steps * 32;
  for (int r = 0; left > 0 && r < kOneRows; ++r) {
    const typename Dot::Input input = Dot::load(x + steps * 32 * Dot::kInputBytes);
    const __m512i words = load_first_words(rows.row[r] + steps * 64, left);
    sums.row[r] = Dot::add(sums.row[r], words, input);
  }
  return sums;
}

template <class Dot>
OneSums multiply_mxfp4_rows(RowPointers rows, RowPointers scales, const std::byte* x,
                            int64_t blocks) {
  OneSums sums;
  for (auto& sum : sums.row) sum = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    const typename Dot::Input input = Dot::load(x + b * 32 * Dot::kInputBytes);
    _mm_prefetch(reinterpret_cast<const char*>(rows.ahead) + b * 64, _MM_HINT_T0);
    for (int r = 0; r < kOneRows; ++r) {
      const auto scale = static_cast<uint8_t>(scales.row[r][b]);
      sums.row[r] = Dot::add(sums.row[r], decode_block(rows.row[r] + b * 16, scale), input);
    }
  }
  return sums;
}

template <class Dot>
void multiply_one_token(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  const int64_t count = weights.in.logical();
  const bool may_read_on = weights.in.padded() >= round_up(count, 32);
  for (int64_t n = args.first_column; n < args.end_column; n += kOneRows) {
    const RowPointers rows = rows_at(weights.data, weights.row_stride, n, args.end_column);
    if (weights.format == WeightFormat::kMxfp4) {
      const RowPointers scales = rows_at(reinterpret_cast<const std::byte*>(weights.scales),
                                         weights.scale_stride, n, args.end_column);
      write_one(args, n,
                multiply_mxfp4_rows<Dot>(rows, scales, args.input.data, round_up(count, 32) / 32));
    } else {
      write_one(args, n, multiply_bf16_rows<Dot>(rows, args.input.data, count, may_read_on));
    }
  }
}

// BF16 and MXFP4 weights of order kOutIn.
template <class Dot>
void multiply_words(const MatmulArgs& args) {
  if (args.input.tokens == 1) return multiply_one_token<Dot>(args);
  MatmulDriver<WordTile<Dot>>(args).run();
}

}  // namespace
}  // namespace rota::ROTA_AVX512

// The loops of the AVX-512 matmul over words (BF16 and coded formats) of order kOutIn, for either
// arithmetic of dot.h. Every element of the result is the sum that one accumulator of 16 lanes
// makes over K, reduced as words.h says, plus the bias: for one token and for many alike.
#pragma once

#include <algorithm>
#include <type_traits>

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

  static void fold(Acc sum, float factor, Acc& into, bool fresh) {
    into = _mm512_fmadd_ps(sum, _mm512_set1_ps(factor), fresh ? _mm512_setzero_ps() : into);
  }

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

template <class Dot, class CodeOf>
struct WordTile : TileShape {
  using Code = CodeOf;
  static constexpr int64_t kStep = 32;
  static constexpr int64_t kElementBytes = 2;
  static constexpr int64_t kInputBytes = Dot::kInputBytes;
  static constexpr int kTokens = Dot::kTokens;
  static constexpr int64_t kRowBlock = 24;
  // E4M3 takes more registers than a tile's sums leave.
  static constexpr bool kDecodesInTile = Code::kCoded && !std::is_same_v<Code, Fp8Code>;

  static void decode(const uint8_t* codes, const uint8_t* scales, std::byte* words) {
    _mm512_store_si512(words, decode_block(Code{}, codes, scales));
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

  // The first group of tokens: the same, and the decoded words are left in the panel for the
  // others. Rows 3 to 5 are addressed from the third: that saves the registers for six pointers
  // each.
  template <int kGroup>
  static void decoding_tile(const CodedRows& rows, std::byte* panel, const std::byte* x,
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
        const uint8_t* scale = (r < 3 ? scales : scales3) + r % 3 * rows.scale_stride;
        const __m512i words = decode_block(Code{}, row, scale);
        _mm512_store_si512(panel + r * kPanelStride, words);
        for (int t = 0; t < kGroup; ++t) sums[t][r] = Dot::add(sums[t][r], words, input[t]);
      }
      codes += Code::kCodeBytes, codes3 += Code::kCodeBytes;
      scales += Code::kScaleBytes, scales3 += Code::kScaleBytes;
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

  void clear() {
    for (auto& sum : row) sum = _mm512_setzero_ps();
  }
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
  for (int64_t r = 0; r < std::min<int64_t>(kOneRows, args.end_column - n); ++r) {
    args.out[n + r] = args.weights->finish(n + r, result[r]);
  }
}

template <class Dot>
OneSums multiply_bf16_rows(RowPointers rows, const std::byte* x, int64_t count, bool may_read_on) {
  OneSums sums;
  sums.clear();
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

// Four coded rows for one token.
template <class Dot, class Code>
class OneToken {
 public:
  OneToken(const MatmulArgs& args, int64_t first_row)
      : weights_(*args.weights), x_(args.input.data) {
    for (int r = 0; r < kOneRows; ++r) {
      row_[r] = std::min(first_row + r, args.end_column - 1);
      rows_[r] = coded_rows<Code>(weights_, row_[r], 0);
    }
    ahead_ = rows_[0].codes + std::max(kOneRows * weights_.row_stride.count, kLeastBytesAhead);
  }

  OneSums sums() const {
    const int64_t count = weights_.in.logical();
    if constexpr (Code::kHasFactors) {
      if (weights_.folds()) {
        OneSums total;
        for (int64_t k = 0; k < count; k += kFoldColumns) {
          fold(sums_over(k, std::min(count, k + kFoldColumns)), k, total);
        }
        return total;
      }
    }
    return sums_over(0, count);
  }

 private:
  // Of the products of columns [first, end).
  OneSums sums_over(int64_t first, int64_t end) const {
    OneSums sums;
    sums.clear();
    const int64_t whole = end / kCodedBlock;
    int64_t b = first / kCodedBlock;
    for (; b < whole; ++b) {
      const typename Dot::Input input = Dot::load(x_ + b * 32 * Dot::kInputBytes);
      for (int64_t i = 0; i < kOneRows * Code::kCodeBytes; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead_) + b * kOneRows * Code::kCodeBytes + i,
                     kHint);
      }
      for (int r = 0; r < kOneRows; ++r) {
        const __m512i words = decode_block(Code{}, rows_[r].codes + b * Code::kCodeBytes,
                                           rows_[r].scales + b * Code::kScaleBytes);
        sums.row[r] = Dot::add(sums.row[r], words, input);
      }
    }
    if (end > b * kCodedBlock) add_tail(b, end - b * kCodedBlock, sums);
    return sums;
  }

  void add_tail(int64_t block, int64_t left, OneSums& sums) const {
    const typename Dot::Input input = Dot::load(x_ + block * 32 * Dot::kInputBytes);
    for (int r = 0; r < kOneRows; ++r) {
      const CodedTail<Code> tail(coded_rows<Code>(weights_, row_[r], block * kCodedBlock), left);
      sums.row[r] = Dot::add(sums.row[r], decode_block(Code{}, tail.codes(), tail.scales()), input);
    }
  }

  void fold(const OneSums& part, int64_t k, OneSums& total) const {
    const BlockScales& factors = weights_.factors;
    for (int r = 0; r < kOneRows; ++r) {
      const float factor = factors.row(row_[r])[k / factors.columns];
      TileShape::fold(part.row[r], factor, total.row[r], k == 0);
    }
  }

  // FP8 has twice the bytes of a block: what is asked for lies too far ahead for L1.
  static constexpr auto kHint = Code::kCodeBytes > 16 ? _MM_HINT_T1 : _MM_HINT_T0;

  const WeightMatrix& weights_;
  const std::byte* x_;
  int64_t row_[kOneRows];
  CodedRows rows_[kOneRows];
  const uint8_t* ahead_;
};

template <class Dot, class Code>
void multiply_one_token(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  for (int64_t n = args.first_column; n < args.end_column; n += kOneRows) {
    if constexpr (Code::kCoded) {
      write_one(args, n, OneToken<Dot, Code>(args, n).sums());
    } else {
      const int64_t count = weights.in.logical();
      const bool may_read_on = weights.in.padded() >= round_up(count, 32);
      const RowPointers rows = rows_at(weights.data, weights.row_stride, n, args.end_column);
      write_one(args, n, multiply_bf16_rows<Dot>(rows, args.input.data, count, may_read_on));
    }
  }
}

template <class Dot, class Code>
void multiply_words(const MatmulArgs& args) {
  if (args.input.tokens == 1) return multiply_one_token<Dot, Code>(args);
  MatmulDriver<WordTile<Dot, Code>>(args).run();
}

// Weights of order kOutIn and every format but float32.
template <class Dot>
void multiply_words(const MatmulArgs& args) {
  switch (args.weights->format) {
    case WeightFormat::kBf16:
      return multiply_words<Dot, Plain>(args);
    case WeightFormat::kMxfp4:
      return multiply_words<Dot, Mxfp4Code>(args);
    case WeightFormat::kNvfp4:
      return multiply_words<Dot, Nvfp4Code>(args);
    case WeightFormat::kFp8:
      return multiply_words<Dot, Fp8Code>(args);
    case WeightFormat::kFloat32:
      break;
  }
}

// FP8's driver needs the most: totals beside its sums.
template <class Dot>
constexpr int64_t kWordScratchBytes = MatmulDriver<WordTile<Dot, Fp8Code>>::kScratchBytes;

}  // namespace
}  // namespace rota::ROTA_AVX512

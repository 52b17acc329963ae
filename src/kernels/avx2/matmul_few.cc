// AVX2, one to three tokens (coded weights: two): bound by the memory that the weights come from,
// and nearly as much by decoding them. Whole rows are walked, two sums for each row and token in
// registers, of the even and of the odd floats, as in matmul_many.cc. (One sum would make a chain
// of additions too long to hide.)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/avx2/matmul_tiles.h"
#include "kernels/avx2/words.h"
#include "tensor/extent.h"

namespace rota::avx2 {
namespace {

// Rows that lie one behind the other and are read side by side are several streams to the hardware,
// and half the bandwidth. So memory is asked for in the order it lies in: step by step the next
// group of rows, in BF16 at K = 2880 23 KB ahead and so into L2 (measured with one token: 50 % of
// the read bandwidth into L1, 95 % into L2). Short rows look further ahead.
constexpr int64_t kLeastBytesAhead = 5760;

struct Sum {
  __m256 even, odd;
};

// One row's sums += 16 words x the inputs of kTokens tokens, x_stride floats apart.
template <int kTokens>
void add_words(Sum (&row)[kTokens], __m256i words, const float* x, int64_t x_stride) {
  const __m256 even = even_floats(words), odd = odd_floats(words);
  for (int t = 0; t < kTokens; ++t) {
    row[t].even = _mm256_fmadd_ps(even, _mm256_load_ps(x + t * x_stride), row[t].even);
    row[t].odd = _mm256_fmadd_ps(odd, _mm256_load_ps(x + t * x_stride + 8), row[t].odd);
  }
}

// kRows rows of weights against kTokens tokens.
template <int kRows, int kTokens>
struct Group {
  Sum sum[kRows][kTokens];

  void clear() {
    for (auto& row : sum) {
      for (Sum& s : row) s = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    }
  }
  void write_out(const MatmulArgs& args, int64_t n) const {
    for (int t = 0; t < kTokens; ++t) {
      alignas(16) float result[4];
      _mm_store_ps(result, reduce_four(total(0, t), total(1, t), total(2, t), total(3, t)));
      for (int64_t r = 0; r < std::min<int64_t>(kRows, args.end_column - n); ++r) {
        args.out[t * args.out_stride + n + r] = args.weights->finish(n + r, result[r]);
      }
    }
  }

 private:
  __m256 total(int r, int t) const {
    return r < kRows ? _mm256_add_ps(sum[r][t].even, sum[r][t].odd) : _mm256_setzero_ps();
  }
};

// Rows first_row .. + kRows - 1; those beyond `end` repeat the last one.
template <int kRows>
struct RowPointers {
  const std::byte* row[kRows];
  const std::byte* ahead;  // the next group, or a little more

  RowPointers(const std::byte* data, Bytes stride, int64_t first_row, int64_t end) {
    for (int r = 0; r < kRows; ++r) {
      row[r] = data + std::min(first_row + r, end - 1) * stride.count;
    }
    ahead = row[0] + std::max(kRows * stride.count, kLeastBytesAhead);
  }
};

struct Inputs {
  const float* x;
  int64_t stride;  // floats from a token to the next
};

template <int kRows, int kTokens>
void multiply_bf16_rows(const MatmulArgs& args, Inputs in, int64_t n) {
  const WeightMatrix& weights = *args.weights;
  const RowPointers<kRows> rows(weights.data, weights.row_stride, n, args.end_column);
  const int64_t count = weights.in.logical();
  const bool may_read_on = weights.in.padded() >= round_up(count, 16);
  const int64_t steps = (count + (may_read_on ? 15 : 0)) / 16;
  Group<kRows, kTokens> group;
  group.clear();
  for (int64_t s = 0; s < steps; ++s) {
    _mm_prefetch(rows.ahead + s * kRows * 32, _MM_HINT_T1);
    if (kRows > 2) _mm_prefetch(rows.ahead + s * kRows * 32 + 64, _MM_HINT_T1);
    for (int r = 0; r < kRows; ++r) {
      add_words(group.sum[r], load_words(rows.row[r] + s * 32), in.x + s * 16, in.stride);
    }
  }
  const int64_t left = count - steps * 16;
  for (int r = 0; left > 0 && r < kRows; ++r) {
    alignas(32) uint16_t tail[16] = {};
    std::memcpy(tail, rows.row[r] + steps * 32, static_cast<size_t>(left) * 2);
    add_words(group.sum[r], load_words(tail), in.x + steps * 16, in.stride);
  }
  group.write_out(args, n);
}

// kRows coded rows against kTokens tokens.
template <class Code, int kRows, int kTokens>
class FewCoded {
 public:
  using Sums = Group<kRows, kTokens>;

  FewCoded(const MatmulArgs& args, Inputs in, int64_t first_row)
      : weights_(*args.weights), in_(in) {
    for (int r = 0; r < kRows; ++r) {
      row_[r] = std::min(first_row + r, args.end_column - 1);
      rows_[r] = coded_rows<Code>(weights_, row_[r], 0);
    }
    ahead_ = rows_[0].codes + std::max(kRows * weights_.row_stride.count, kLeastBytesAhead);
  }

  Sums sums() const {
    const int64_t count = weights_.in.logical();
    if constexpr (Code::kHasFactors) {
      if (weights_.folds()) {
        Sums total;
        total.clear();
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
  Sums sums_over(int64_t first, int64_t end) const {
    Sums sums;
    sums.clear();
    const int64_t whole = end / kCodedBlock;
    int64_t b = first / kCodedBlock;
    for (; b < whole; ++b) {
      for (int64_t i = 0; i < kRows * Code::kCodeBytes; i += 64) {
        _mm_prefetch(ahead_ + b * kRows * Code::kCodeBytes + i, kHint);
      }
      for (int r = 0; r < kRows; ++r) {
        add_block(rows_[r].codes + b * Code::kCodeBytes, rows_[r].scales + b * Code::kScaleBytes, b,
                  sums.sum[r]);
      }
    }
    for (int r = 0; end > b * kCodedBlock && r < kRows; ++r) {
      const CodedTail<Code> tail(coded_rows<Code>(weights_, row_[r], b * kCodedBlock),
                                 end - b * kCodedBlock);
      add_block(tail.codes(), tail.scales(), b, sums.sum[r]);
    }
    return sums;
  }

  void add_block(const uint8_t* codes, const uint8_t* scales, int64_t block,
                 Sum (&row)[kTokens]) const {
    const TwoWords words = decode_block(Code{}, codes, scales);
    const float* x = in_.x + block * kCodedBlock;
    add_words(row, words.words[0], x, in_.stride);
    add_words(row, words.words[1], x + 16, in_.stride);
  }

  void fold(const Sums& part, int64_t k, Sums& total) const {
    const BlockScales& factors = weights_.factors;
    for (int r = 0; r < kRows; ++r) {
      const __m256 factor = _mm256_set1_ps(factors.row(row_[r])[k / factors.columns]);
      for (int t = 0; t < kTokens; ++t) {
        Sum& into = total.sum[r][t];
        into = {_mm256_fmadd_ps(part.sum[r][t].even, factor, into.even),
                _mm256_fmadd_ps(part.sum[r][t].odd, factor, into.odd)};
      }
    }
  }

  // FP8 has twice the bytes of a block: what is asked for lies too far ahead for L1.
  static constexpr auto kHint = Code::kCodeBytes > 16 ? _MM_HINT_T1 : _MM_HINT_T0;

  const WeightMatrix& weights_;
  Inputs in_;
  int64_t row_[kRows];
  CodedRows rows_[kRows];
  const uint8_t* ahead_;
};

Inputs inputs_of(const MatmulArgs& args) {
  return {reinterpret_cast<const float*>(args.input.data),
          args.input.layout.token_stride.count / static_cast<int64_t>(sizeof(float))};
}

// Rows: as many as leave registers for decoding, twice rows x tokens of 16 hold sums.
template <int kRows, int kTokens>
void multiply_bf16(const MatmulArgs& args) {
  for (int64_t n = args.first_column; n < args.end_column; n += kRows) {
    multiply_bf16_rows<kRows, kTokens>(args, inputs_of(args), n);
  }
}
template <class Code, int kRows, int kTokens>
void multiply_coded(const MatmulArgs& args) {
  for (int64_t n = args.first_column; n < args.end_column; n += kRows) {
    FewCoded<Code, kRows, kTokens>(args, inputs_of(args), n).sums().write_out(args, n);
  }
}
template <class Code>
void multiply_coded(const MatmulArgs& args) {
  if (args.input.tokens == 1) return multiply_coded<Code, 4, 1>(args);
  multiply_coded<Code, 2, 2>(args);
}

void multiply_bf16(const MatmulArgs& args) {
  if (args.input.tokens == 1) return multiply_bf16<4, 1>(args);
  if (args.input.tokens == 2) return multiply_bf16<2, 2>(args);
  multiply_bf16<2, 3>(args);
}

}  // namespace

void multiply_few_words(const MatmulArgs& args) {
  switch (args.weights->format) {
    case WeightFormat::kBf16:
      return multiply_bf16(args);
    case WeightFormat::kMxfp4:
      return multiply_coded<Mxfp4Code>(args);
    case WeightFormat::kNvfp4:
      return multiply_coded<Nvfp4Code>(args);
    case WeightFormat::kFp8:
      return multiply_coded<Fp8Code>(args);
    case WeightFormat::kFloat32:
      break;
  }
}

}  // namespace rota::avx2

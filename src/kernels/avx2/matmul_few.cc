// AVX2, one to three tokens (MXFP4: two): bound by the memory that the weights come from, and nearly as much by
// decoding them. Whole rows are walked, two sums for each row and token in registers, of the even and
// of the odd floats, as in matmul_many.cc. (One sum would make a chain of additions too long to hide.)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/avx2/matmul_tiles.h"
#include "kernels/avx2/words.h"
#include "tensor/extent.h"

namespace rota::avx2 {
namespace {

// Rows that lie one behind the other and are read side by side are several streams to the hardware,
// and half the bandwidth. So memory is asked for in the order it lies in: step by step the next group
// of rows, in BF16 at K = 2880 23 KB ahead and so into L2 (measured with one token: 50 % of the read
// bandwidth into L1, 95 % into L2). Short rows look further ahead.
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
    const Bf16* bias = args.weights->bias;
    for (int t = 0; t < kTokens; ++t) {
      alignas(16) float result[4];
      _mm_store_ps(result, reduce_four(total(0, t), total(1, t), total(2, t), total(3, t)));
      for (int64_t r = 0; r < std::min<int64_t>(kRows, args.end_column - n); ++r) {
        args.out[t * args.out_stride + n + r] =
            result[r] + (bias != nullptr ? to_float(bias[n + r]) : 0.0f);
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

template <int kRows, int kTokens>
void multiply_mxfp4_rows(const MatmulArgs& args, Inputs in, int64_t n) {
  const WeightMatrix& weights = *args.weights;
  const RowPointers<kRows> rows(weights.data, weights.row_stride, n, args.end_column);
  const RowPointers<kRows> scales(reinterpret_cast<const std::byte*>(weights.scales),
                                  weights.scale_stride, n, args.end_column);
  const int64_t blocks = round_up(weights.in.logical(), 32) / 32;
  Group<kRows, kTokens> group;
  group.clear();
  for (int64_t b = 0; b < blocks; ++b) {
    _mm_prefetch(rows.ahead + b * kRows * 16, _MM_HINT_T0);
    const float* x = in.x + b * 32;
    for (int r = 0; r < kRows; ++r) {
      const TwoWords block = decode_mxfp4(reinterpret_cast<const uint8_t*>(rows.row[r]) + b * 16,
                                          static_cast<uint8_t>(scales.row[r][b]));
      add_words(group.sum[r], block.words[0], x, in.stride);
      add_words(group.sum[r], block.words[1], x + 16, in.stride);
    }
  }
  group.write_out(args, n);
}

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
template <int kRows, int kTokens>
void multiply_mxfp4(const MatmulArgs& args) {
  for (int64_t n = args.first_column; n < args.end_column; n += kRows) {
    multiply_mxfp4_rows<kRows, kTokens>(args, inputs_of(args), n);
  }
}

}  // namespace

void multiply_few_words(const MatmulArgs& args) {
  const bool mxfp4 = args.weights->format == WeightFormat::kMxfp4;
  if (args.input.tokens == 1) return mxfp4 ? multiply_mxfp4<4, 1>(args) : multiply_bf16<4, 1>(args);
  if (args.input.tokens == 2) return mxfp4 ? multiply_mxfp4<2, 2>(args) : multiply_bf16<2, 2>(args);
  multiply_bf16<2, 3>(args);
}

}  // namespace rota::avx2

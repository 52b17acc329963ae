// AVX2, BF16 weights of order kInOut: a row of data holds one input's weights for all outputs, so
// the lanes are outputs and each output adds its products in the order of K, one by one.
//
// A strip of columns is walked down K in steps of four rows; its sums wait in L1 meanwhile. So
// memory is read in runs of a strip's width whatever the number of tokens, and with 8
// multiplications for 2 loads and 2 stores of sums the multipliers stay busy.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/avx2/matmul_tiles.h"
#include "kernels/avx2/words.h"
#include "tensor/extent.h"

namespace rota::avx2 {
namespace {

constexpr int64_t kVector = 16;         // columns of one vector of words
constexpr int64_t kSumFloats = 4096;    // of a strip: 16 KiB, half of L1
constexpr int64_t kMaxTokenBlock = 64;  // leaves strips of 64 columns at least
constexpr int64_t kRowsAhead = 16;      // prefetch distance

// Columns [first, first + vectors * 16) of tokens [token, token + tokens).
struct Strip {
  int64_t first_column;
  int64_t vectors;
  int64_t first_token;
  int64_t tokens;
};

// 16 words, or those that the row still has.
__m256i load_columns(const std::byte* from, int64_t columns_left) {
  if (columns_left >= kVector) return load_words(from);
  alignas(32) uint16_t copy[kVector] = {};
  std::memcpy(copy, from, static_cast<size_t>(columns_left) * 2);
  return load_words(copy);
}

// Asks for a strip's later rows in the order in which they lie in memory, two cache lines a step of
// kDepth rows x kVector columns, into L2: the four rows that are read side by side would be four
// streams (measured: 38 % of the read bandwidth in their order, 72 % in this one).
class RowsAhead {
 public:
  RowsAhead(const std::byte* row, int64_t stride, int64_t columns)
      : row_(row + kRowsAhead * stride), stride_(stride), bytes_(columns * 2) {}
  void step() {
    for (int i = 0; i < 2; ++i) {
      _mm_prefetch(row_ + at_, _MM_HINT_T1);
      at_ += 64;
      if (at_ >= bytes_) {
        at_ = 0;
        row_ += stride_;
      }
    }
  }

 private:
  const std::byte* row_;
  int64_t stride_;
  int64_t bytes_;
  int64_t at_ = 0;
};

// Adds kDepth rows from k on to the sums [tokens][vectors][even columns 8, odd columns 8].
template <int kDepth>
void add_rows(const MatmulArgs& args, const Strip& strip, int64_t k, float* sums) {
  const WeightMatrix& weights = *args.weights;
  const int64_t stride = weights.row_stride.count;
  const std::byte* row = weights.data + k * stride + strip.first_column * 2;
  const int64_t x_stride = args.input.layout.token_stride.count;
  const std::byte* first_x = args.input.data + strip.first_token * x_stride + k * 4;
  RowsAhead ahead(row, stride, strip.vectors * kVector);
  for (int64_t v = 0; v < strip.vectors; ++v) {
    ahead.step();
    const int64_t left = weights.out.padded() - strip.first_column - v * kVector;
    __m256 even[kDepth], odd[kDepth];
    for (int d = 0; d < kDepth; ++d) {
      const std::byte* from = row + d * stride + v * kVector * 2;
      const __m256i words = load_columns(from, left);
      even[d] = even_floats(words);
      odd[d] = odd_floats(words);
    }
    float* sum = sums + v * kVector;
    const std::byte* x = first_x;
    for (int64_t t = 0; t < strip.tokens; ++t) {
      __m256 even_sum = _mm256_load_ps(sum);
      __m256 odd_sum = _mm256_load_ps(sum + 8);
      for (int d = 0; d < kDepth; ++d) {
        const __m256 input = _mm256_broadcast_ss(reinterpret_cast<const float*>(x) + d);
        even_sum = _mm256_fmadd_ps(even[d], input, even_sum);
        odd_sum = _mm256_fmadd_ps(odd[d], input, odd_sum);
      }
      _mm256_store_ps(sum, even_sum);
      _mm256_store_ps(sum + 8, odd_sum);
      sum += strip.vectors * kVector;
      x += x_stride;
    }
  }
}

void write_out(const MatmulArgs& args, const Strip& strip, const float* sums) {
  const Bf16* bias = args.weights->bias;
  for (int64_t t = 0; t < strip.tokens; ++t) {
    float* out = args.out + (strip.first_token + t) * args.out_stride;
    for (int64_t v = 0; v < strip.vectors; ++v, sums += kVector) {
      const int64_t n = strip.first_column + v * kVector;
      const int64_t count = std::min(kVector, args.end_column - n);
      for (int64_t i = 0; i < count; ++i) {
        const float sum = sums[i / 2 + i % 2 * 8];
        out[n + i] = sum + (bias != nullptr ? to_float(bias[n + i]) : 0.0f);
      }
    }
  }
}

void multiply_strip(const MatmulArgs& args, const Strip& strip) {
  constexpr int kDepth = 4;
  auto* sums = reinterpret_cast<float*>(args.scratch.data());
  const int64_t rows = args.weights->in.logical();
  std::fill_n(sums, strip.tokens * strip.vectors * kVector, 0.0f);
  int64_t k = 0;
  for (; k + kDepth <= rows; k += kDepth) add_rows<kDepth>(args, strip, k, sums);
  for (; k < rows; ++k) add_rows<1>(args, strip, k, sums);
  write_out(args, strip, sums);
}

}  // namespace

Bytes in_out_scratch_bytes() { return {kSumFloats * static_cast<int64_t>(sizeof(float))}; }

void multiply_in_out(const MatmulArgs& args) {
  const int64_t tokens = args.input.tokens;
  for (int64_t t = 0; t < tokens; t += kMaxTokenBlock) {
    Strip strip{.first_column = args.first_column,
                .vectors = 0,
                .first_token = t,
                .tokens = std::min(kMaxTokenBlock, tokens - t)};
    const int64_t width = kSumFloats / strip.tokens / 32 * 32;
    for (; strip.first_column < args.end_column; strip.first_column += width) {
      const int64_t columns = std::min(width, args.end_column - strip.first_column);
      strip.vectors = round_up(columns, kVector) / kVector;
      multiply_strip(args, strip);
    }
  }
}

}  // namespace rota::avx2

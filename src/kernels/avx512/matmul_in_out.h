// The AVX-512 matmul over BF16 weights of order kInOut, for either arithmetic of dot.h. The lanes
// are outputs, and each output adds its products in the order of K: one by one in float32, two at a
// time with the dot product. See avx2/matmul_in_out.cc for why strips.
#pragma once

#include <algorithm>

#include "kernels/avx512/dot.h"
#include "kernels/matmul.h"
#include "tensor/extent.h"

namespace rota::ROTA_AVX512 {
namespace {

constexpr int64_t kVector = 32;         // columns of one vector of words
constexpr int64_t kSumFloats = 4096;    // of a strip: 16 KiB, half of L1
constexpr int64_t kMaxTokenBlock = 64;  // leaves strips of 64 columns at least
constexpr int64_t kRowsAhead = 8;       // prefetch distance

// Columns [first_column, + vectors * 32) of tokens [first_token, + tokens).
struct Strip {
  int64_t first_column;
  int64_t vectors;
  int64_t first_token;
  int64_t tokens;
};

// Two vectors of 16 sums, and the weights that one multiplication each adds to them.
struct TwoSums {
  __m512 a, b;
};

// Rows one by one: sums of the even columns, then of the odd ones.
struct FloatColumns {
  static constexpr int64_t kRows = 1;
  static constexpr int64_t kInputBytes = 4;
  static constexpr int64_t place_of(int64_t column) { return column / 2 + column % 2 * 16; }
  struct Weights {
    __m512 even, odd;
  };
  static Weights load(const std::byte* row, int64_t /*stride*/, int64_t columns, bool /*pair*/) {
    const __m512i words = load_first_words(row, columns);
    return {even_floats(words), odd_floats(words)};
  }
  static TwoSums add(TwoSums sums, const Weights& w, const std::byte* x) {
    const __m512 input = _mm512_set1_ps(*reinterpret_cast<const float*>(x));
    return {_mm512_fmadd_ps(w.even, input, sums.a), _mm512_fmadd_ps(w.odd, input, sums.b)};
  }
};

#if defined(__AVX512BF16__) || defined(ROTA_COMPILING_EMULATED_AVX512)
// Pairs of rows, interleaved word by word: sums of columns 8 i + 0..3, then of 8 i + 4..7.
struct Bf16Columns {
  static constexpr int64_t kRows = 2;
  static constexpr int64_t kInputBytes = 2;
  static constexpr int64_t place_of(int64_t column) {
    return column / 8 * 4 + column % 4 + column / 4 % 2 * 16;
  }
  struct Weights {
    __m512i low, high;
  };
  // A last row without a partner pairs with zeros.
  static Weights load(const std::byte* row, int64_t stride, int64_t columns, bool pair) {
    const __m512i first = load_first_words(row, columns);
    const __m512i second = pair ? load_first_words(row + stride, columns) : _mm512_setzero_si512();
    return {_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)};
  }
  static TwoSums add(TwoSums sums, const Weights& w, const std::byte* x) {
    const __m512i input = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x));
    return {Bf16Dot::add(sums.a, w.low, input), Bf16Dot::add(sums.b, w.high, input)};
  }
};
#endif

// Adds kDepth groups of rows from k on to the sums [tokens][vectors][32].
template <class Columns, int kDepth>
void add_rows(const MatmulArgs& args, const Strip& strip, int64_t k, float* sums) {
  const WeightMatrix& weights = *args.weights;
  const int64_t stride = weights.row_stride.count;
  const std::byte* row = weights.data + k * stride + strip.first_column * 2;
  const int64_t x_stride = args.input.layout.token_stride.count;
  const std::byte* first_x =
      args.input.data + strip.first_token * x_stride + k * Columns::kInputBytes;
  const bool pair = k + kDepth * Columns::kRows <= weights.in.logical();
  for (int64_t v = 0; v < strip.vectors; ++v) {
    const int64_t left = weights.out.padded() - strip.first_column - v * kVector;
    typename Columns::Weights group[kDepth];
    for (int d = 0; d < kDepth; ++d) {
      const std::byte* from = row + d * Columns::kRows * stride + v * kVector * 2;
      group[d] = Columns::load(from, stride, left, pair);
      for (int64_t r = 0; r < Columns::kRows; ++r) {
        _mm_prefetch(reinterpret_cast<const char*>(from) + (kRowsAhead + r) * stride, _MM_HINT_T0);
      }
    }
    float* sum = sums + v * kVector;
    const std::byte* x = first_x;
    for (int64_t t = 0; t < strip.tokens; ++t) {
      TwoSums two{_mm512_load_ps(sum), _mm512_load_ps(sum + 16)};
      for (int d = 0; d < kDepth; ++d) {
        two = Columns::add(two, group[d], x + d * Columns::kRows * Columns::kInputBytes);
      }
      _mm512_store_ps(sum, two.a);
      _mm512_store_ps(sum + 16, two.b);
      sum += strip.vectors * kVector;
      x += x_stride;
    }
  }
}

template <class Columns>
void write_strip(const MatmulArgs& args, const Strip& strip, const float* sums) {
  const Bf16* bias = args.weights->bias;
  for (int64_t t = 0; t < strip.tokens; ++t) {
    float* out = args.out + (strip.first_token + t) * args.out_stride;
    for (int64_t v = 0; v < strip.vectors; ++v, sums += kVector) {
      const int64_t n = strip.first_column + v * kVector;
      const int64_t count = std::min(kVector, args.end_column - n);
      for (int64_t i = 0; i < count; ++i) {
        const float sum = sums[Columns::place_of(i)];
        out[n + i] = sum + (bias != nullptr ? to_float(bias[n + i]) : 0.0f);
      }
    }
  }
}

template <class Columns>
void multiply_strip(const MatmulArgs& args, const Strip& strip) {
  constexpr int kDepth = 4;
  auto* sums = reinterpret_cast<float*>(args.scratch.data());
  const int64_t rows = args.weights->in.logical();
  std::fill_n(sums, strip.tokens * strip.vectors * kVector, 0.0f);
  int64_t k = 0;
  for (; k + kDepth * Columns::kRows <= rows; k += kDepth * Columns::kRows) {
    add_rows<Columns, kDepth>(args, strip, k, sums);
  }
  for (; k < rows; k += Columns::kRows) add_rows<Columns, 1>(args, strip, k, sums);
  write_strip<Columns>(args, strip, sums);
}

constexpr int64_t kInOutScratchBytes = kSumFloats * 4;

template <class Columns>
void multiply_in_out(const MatmulArgs& args) {
  const int64_t tokens = args.input.tokens;
  for (int64_t t = 0; t < tokens; t += kMaxTokenBlock) {
    Strip strip{.first_column = args.first_column,
                .vectors = 0,
                .first_token = t,
                .tokens = std::min(kMaxTokenBlock, tokens - t)};
    const int64_t width = kSumFloats / strip.tokens / kVector * kVector;
    for (; strip.first_column < args.end_column; strip.first_column += width) {
      const int64_t columns = std::min(width, args.end_column - strip.first_column);
      strip.vectors = round_up(columns, kVector) / kVector;
      multiply_strip<Columns>(args, strip);
    }
  }
}

}  // namespace
}  // namespace rota::ROTA_AVX512

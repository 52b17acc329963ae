// AVX2, many tokens: a register tile of 4 rows x 3 tokens. Twelve of 16 registers hold sums, three
// the inputs, one a row's weights: 7 loads for 12 multiplications, and nothing may be spilled.
// Compilers left alone fold inputs into multiplications (15 loads), rename sums and spill them: two
// thirds of the speed of the same loop with its multiplications pinned, hence the lines of
// assembly.
#include <immintrin.h>

#include <algorithm>

#include "kernels/avx2/matmul_tiles.h"
#include "kernels/avx2/words.h"
#include "kernels/matmul_driver.h"

namespace rota::avx2 {
namespace {

struct TileShape {
  static constexpr int kRows = 4;
  static constexpr int kTokens = 3;
  static constexpr int64_t kInputBytes = 4;
  static constexpr int64_t kRowBlock = 12;       // measured: 79 % of the peak, 24 rows 70 %
  static constexpr bool kDecodesInTile = false;  // the registers are full
};

constexpr int kRows = TileShape::kRows;

// sum += a * b, in place.
[[gnu::always_inline]] inline void fma_in_place(__m256& sum, __m256 a, __m256 b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

// A load that stays one, in a register of its own.
[[gnu::always_inline]] inline __m256 load_once(const std::byte* from) {
  __m256 value = _mm256_load_ps(reinterpret_cast<const float*>(from));
  asm("" : "+x"(value));
  return value;
}

// odd_floats() with its mask read from memory: there is no register left for it.
[[gnu::always_inline]] inline __m256 odd_floats_by_memory(__m256i words) {
  alignas(32) static constexpr uint32_t kMask[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                    0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                    0xffff0000u, 0xffff0000u};
  asm("vpand %1, %0, %0" : "+x"(words) : "m"(kMask));
  return _mm256_castsi256_ps(words);
}

// One vector for each token of a group. Members, not an array: a compiler keeps them in registers.
struct OfTokens {
  __m256 t0, t1, t2;
};

template <int kGroup>
[[gnu::always_inline]] inline OfTokens load_inputs(const std::byte* x, int64_t x_stride) {
  OfTokens input{};
  input.t0 = load_once(x);
  if constexpr (kGroup > 1) input.t1 = load_once(x + x_stride);
  if constexpr (kGroup > 2) input.t2 = load_once(x + 2 * x_stride);
  return input;
}

template <int kGroup>
[[gnu::always_inline]] inline void multiply_row(__m256 weight, const OfTokens& input,
                                                OfTokens& sums) {
  fma_in_place(sums.t0, weight, input.t0);
  if constexpr (kGroup > 1) fma_in_place(sums.t1, weight, input.t1);
  if constexpr (kGroup > 2) fma_in_place(sums.t2, weight, input.t2);
}

// The sums of a tile in registers. In memory they are [kGroup][kRows], `stride` vectors apart.
template <int kGroup>
struct TileSums {
  OfTokens row0, row1, row2, row3;

  [[gnu::always_inline]] void load(const __m256* from, int stride, bool fresh) {
    row0 = row1 = row2 = row3 = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    if (fresh) return;
    load_row(from, stride, row0);
    load_row(from + stride, stride, row1);
    load_row(from + 2 * stride, stride, row2);
    load_row(from + 3 * stride, stride, row3);
  }
  [[gnu::always_inline]] void store(__m256* to, int stride) const {
    store_row(row0, to, stride);
    store_row(row1, to + stride, stride);
    store_row(row2, to + 2 * stride, stride);
    store_row(row3, to + 3 * stride, stride);
  }

 private:
  [[gnu::always_inline]] static void load_row(const __m256* from, int stride, OfTokens& row) {
    row.t0 = from[0];
    if constexpr (kGroup > 1) row.t1 = from[kRows * stride];
    if constexpr (kGroup > 2) row.t2 = from[2 * kRows * stride];
  }
  [[gnu::always_inline]] static void store_row(const OfTokens& row, __m256* to, int stride) {
    to[0] = row.t0;
    if constexpr (kGroup > 1) to[kRows * stride] = row.t1;
    if constexpr (kGroup > 2) to[2 * kRows * stride] = row.t2;
  }
};

template <class CodeOf>
struct WordTile : TileShape {
  using Code = CodeOf;
  // A pass over the even floats, then one over the odd ones, each with sums of its own.
  struct Acc {
    __m256 even, odd;
  };
  static constexpr int64_t kStep = 16;
  static constexpr int64_t kElementBytes = 2;

  static void decode(const uint8_t* codes, const uint8_t* scales, std::byte* words) {
    auto* to = reinterpret_cast<__m256i*>(words);
    const TwoWords block = decode_block(Code{}, codes, scales);
    _mm256_store_si256(to, block.words[0]);
    _mm256_store_si256(to + 1, block.words[1]);
  }

  static void fold(const Acc& sum, float factor, Acc& into, bool fresh) {
    const __m256 f = _mm256_set1_ps(factor), zero = _mm256_setzero_ps();
    into = {_mm256_fmadd_ps(sum.even, f, fresh ? zero : into.even),
            _mm256_fmadd_ps(sum.odd, f, fresh ? zero : into.odd)};
  }

  template <int kGroup>
  static void tile(const std::byte* const* rows, const std::byte* x, int64_t x_stride,
                   int64_t steps, Acc* acc, bool fresh) {
    pass<kGroup>(rows, x, x_stride, steps, &acc->even, fresh,
                 [](const std::byte* words) { return even_floats(load_words(words)); });
    pass<kGroup>(rows, x + 32, x_stride, steps, &acc->odd, fresh,
                 [](const std::byte* words) { return odd_floats_by_memory(load_words(words)); });
  }

  static void reduce(const Acc* acc, float* out) {
    const auto sum = [acc](int r) { return _mm256_add_ps(acc[r].even, acc[r].odd); };
    _mm_storeu_ps(out, reduce_four(sum(0), sum(1), sum(2), sum(3)));
  }

 private:
  template <int kGroup, typename Floats>
  [[gnu::always_inline]] static void pass(const std::byte* const* rows, const std::byte* x,
                                          int64_t x_stride, int64_t steps, __m256* acc, bool fresh,
                                          Floats floats_of) {
    TileSums<kGroup> sums;
    sums.load(acc, 2, fresh);
    const std::byte *w0 = rows[0], *w1 = rows[1], *w2 = rows[2], *w3 = rows[3];
    for (int64_t at = 0; at < steps * 32; at += 32) {
      const OfTokens input = load_inputs<kGroup>(x + 2 * at, x_stride);
      multiply_row<kGroup>(floats_of(w0 + at), input, sums.row0);
      multiply_row<kGroup>(floats_of(w1 + at), input, sums.row1);
      multiply_row<kGroup>(floats_of(w2 + at), input, sums.row2);
      multiply_row<kGroup>(floats_of(w3 + at), input, sums.row3);
    }
    sums.store(acc, 2);
  }
};

__m256 load_floats(const std::byte* from) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
}

struct FloatTile : TileShape {
  using Code = Plain;
  using Acc = __m256;
  static constexpr int64_t kStep = 8;
  static constexpr int64_t kElementBytes = 4;

  template <int kGroup>
  static void tile(const std::byte* const* rows, const std::byte* x, int64_t x_stride,
                   int64_t steps, Acc* acc, bool fresh) {
    TileSums<kGroup> sums;
    sums.load(acc, 1, fresh);
    const std::byte *w0 = rows[0], *w1 = rows[1], *w2 = rows[2], *w3 = rows[3];
    for (int64_t at = 0; at < steps * 32; at += 32) {
      const OfTokens input = load_inputs<kGroup>(x + at, x_stride);
      multiply_row<kGroup>(load_floats(w0 + at), input, sums.row0);
      multiply_row<kGroup>(load_floats(w1 + at), input, sums.row1);
      multiply_row<kGroup>(load_floats(w2 + at), input, sums.row2);
      multiply_row<kGroup>(load_floats(w3 + at), input, sums.row3);
    }
    sums.store(acc, 1);
  }

  static void reduce(const Acc* acc, float* out) {
    _mm_storeu_ps(out, reduce_four(acc[0], acc[1], acc[2], acc[3]));
  }
};

}  // namespace

// FP8's driver needs the most: totals beside its sums.
Bytes many_scratch_bytes() {
  return {std::max(MatmulDriver<WordTile<Fp8Code>>::kScratchBytes,
                   MatmulDriver<FloatTile>::kScratchBytes)};
}

void multiply_many_words(const MatmulArgs& args) {
  switch (args.weights->format) {
    case WeightFormat::kBf16:
      return MatmulDriver<WordTile<Plain>>(args).run();
    case WeightFormat::kMxfp4:
      return MatmulDriver<WordTile<Mxfp4Code>>(args).run();
    case WeightFormat::kNvfp4:
      return MatmulDriver<WordTile<Nvfp4Code>>(args).run();
    case WeightFormat::kFp8:
      return MatmulDriver<WordTile<Fp8Code>>(args).run();
    case WeightFormat::kFloat32:
      break;
  }
}

void multiply_many_floats(const MatmulArgs& args) { MatmulDriver<FloatTile>(args).run(); }

}  // namespace rota::avx2

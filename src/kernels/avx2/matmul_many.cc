// AVX2, many tokens: a register tile of 4 rows x 3 tokens, so 12 of 16 registers hold sums.
#include <immintrin.h>

#include "kernels/avx2/matmul_tiles.h"
#include "kernels/avx2/words.h"
#include "kernels/matmul_driver.h"

namespace rota::avx2 {
namespace {

struct TileShape {
  using Acc = __m256;
  static constexpr int kRows = 4;
  static constexpr int kTokens = 3;
  static constexpr int64_t kInputBytes = 4;
  static constexpr bool kDecodesInTile = false;  // the registers are full

  static void reduce(const Acc* acc, float* out) {
    _mm_storeu_ps(out, reduce_four(acc[0], acc[1], acc[2], acc[3]));
  }
};

template <int kTokens>
void load_sums(const __m256* from, bool fresh, __m256 (&sums)[kTokens][4]) {
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < 4; ++r) sums[t][r] = fresh ? _mm256_setzero_ps() : from[t * 4 + r];
  }
}

template <int kTokens>
void store_sums(const __m256 (&sums)[kTokens][4], __m256* to) {
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < 4; ++r) to[t * 4 + r] = sums[t][r];
  }
}

struct WordTile : TileShape {
  static constexpr int64_t kStep = 16;
  static constexpr int64_t kDecodeStep = 64;
  static constexpr int64_t kElementBytes = 2;

  static void decode_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                           std::byte* words) {
    auto* to = reinterpret_cast<__m256i*>(words);
    for (int64_t b = 0; b < blocks; b += 2, to += 4) {
      const bool last = b + 1 == blocks;
      const FourWords four =
          decode_mxfp4_pair(last ? load_last_block(codes + b * 16) : load_words(codes + b * 16),
                            scales[b], scales[last ? b : b + 1]);
      for (int w = 0; w < 4; ++w) _mm256_store_si256(to + w, four.words[w]);
    }
  }

  template <int kGroup>
  static void tile(const std::byte* const* rows, const std::byte* x, int64_t x_stride,
                   int64_t steps, Acc* acc, bool fresh) {
    __m256 sums[kGroup][4];
    load_sums<kGroup>(acc, fresh, sums);
    const std::byte *row0 = rows[0], *row1 = rows[1], *row2 = rows[2], *row3 = rows[3];
    for (int64_t s = 0; s < steps; ++s) {
      const std::byte* row[4] = {row0, row1, row2, row3};
      for (int odd = 0; odd < 2; ++odd) {
        __m256 input[kGroup];
        for (int t = 0; t < kGroup; ++t) {
          input[t] = _mm256_load_ps(reinterpret_cast<const float*>(x + t * x_stride) + odd * 8);
        }
        for (int r = 0; r < 4; ++r) {
          const __m256i words = load_words(row[r] + s * 32);
          const __m256 weight = odd != 0 ? odd_floats(words) : even_floats(words);
          for (int t = 0; t < kGroup; ++t) {
            sums[t][r] = _mm256_fmadd_ps(weight, input[t], sums[t][r]);
          }
        }
      }
      x += 64;
    }
    store_sums<kGroup>(sums, acc);
  }
};

struct FloatTile : TileShape {
  static constexpr int64_t kStep = 8;
  static constexpr int64_t kDecodeStep = kStep;
  static constexpr int64_t kElementBytes = 4;

  template <int kGroup>
  static void tile(const std::byte* const* rows, const std::byte* x, int64_t x_stride,
                   int64_t steps, Acc* acc, bool fresh) {
    __m256 sums[kGroup][4];
    load_sums<kGroup>(acc, fresh, sums);
    for (int64_t s = 0; s < steps; ++s) {
      for (int r = 0; r < 4; ++r) {
        const __m256 weight = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[r]) + s * 8);
        for (int t = 0; t < kGroup; ++t) {
          const auto* input = reinterpret_cast<const float*>(x + t * x_stride) + s * 8;
          sums[t][r] = _mm256_fmadd_ps(weight, _mm256_load_ps(input), sums[t][r]);
        }
      }
    }
    store_sums<kGroup>(sums, acc);
  }
};

}  // namespace

Bytes many_scratch_bytes() {
  return {std::max(MatmulDriver<WordTile>::kScratchBytes, MatmulDriver<FloatTile>::kScratchBytes)};
}

void multiply_many_words(const MatmulArgs& args) { MatmulDriver<WordTile>(args).run(); }
void multiply_many_floats(const MatmulArgs& args) { MatmulDriver<FloatTile>(args).run(); }

}  // namespace rota::avx2

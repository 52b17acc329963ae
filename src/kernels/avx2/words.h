// BF16 words and MXFP4 blocks as float32 vectors of AVX2. Included by the AVX2 matmul sources only.
//
// A vector of 16 words gives two of 8 floats: the words at even places (shifted up) and at odd
// places (masked). MXFP4 is decoded to such words too, so one order serves both:
//
//   BF16    16 elements: floats k = 0 2 4 .. 14, then 1 3 5 .. 15
//   MXFP4   a block of 32 makes two vectors of words. The first gives the floats
//           0 4 8 12 1 5 9 13, then 2 6 10 14 3 7 11 15; the second the same with 16 added
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/mxfp4_table.h"

namespace rota::avx2 {
namespace {

inline __m256i load_words(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline __m256 even_floats(__m256i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
inline __m256 odd_floats(__m256i words) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

struct TwoWords {
  __m256i words[2];
};

// codes: the 16 bytes of a block. The low nibbles, elements 0 2 4.., go to the lower lane, the high
// ones to the upper. A code looks up the two bytes of its scaled BF16 value in the scale's row.
[[gnu::always_inline]] inline TwoWords decode_mxfp4(const uint8_t* codes, uint8_t scale) {
  const Mxfp4ByteRow& row = kMxfp4ByteTable[scale];
  const __m256i twice =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i nibbles = _mm256_and_si256(
      _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)), _mm256_set1_epi8(15));
  const __m256i low = _mm256_shuffle_epi8(load_words(row.low.data()), nibbles);
  const __m256i high = _mm256_shuffle_epi8(load_words(row.high.data()), nibbles);
  return {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
}

// (l + l+4), then + 2, then + 1, of four vectors at once.
inline __m128 reduce_four(__m256 a, __m256 b, __m256 c, __m256 d) {
  const auto halves = [](__m256 v) {
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  };
  const __m128 ha = halves(a), hb = halves(b), hc = halves(c), hd = halves(d);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(ha, hb), _mm_unpackhi_ps(ha, hb));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(hc, hd), _mm_unpackhi_ps(hc, hd));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

}  // namespace
}  // namespace rota::avx2

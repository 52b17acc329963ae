// BF16 words and MXFP4 blocks as float32 vectors of AVX2. Included by the AVX2 matmul sources only.
//
// A vector of 16 words gives two of 8 floats: the words at even places (shifted up) and at odd
// places (masked). MXFP4 is decoded to such words too, so one order serves both:
//
//   BF16    16 elements: floats k = 0 2 4 .. 14, then 1 3 5 .. 15
//   MXFP4   two blocks a, b make four vectors of words. The first gives the floats
//           a0 a4 a8 a12 b0 b4 b8 b12, then a2 a6 a10 a14 b2 b6 b10 b14; the others the same with
//           16, 1 and 17 added to each k
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

// Bytes a for the lower lane, b for the upper one.
inline __m256i load_lanes(const void* a, const void* b) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_load_si128(static_cast<const __m128i*>(a))),
      _mm_load_si128(static_cast<const __m128i*>(b)), 1);
}

struct FourWords {
  __m256i words[4];
};

// codes: 16 bytes of block a, 16 of block b. A code looks up the two bytes of its scaled BF16 value
// in its block's row of the table.
inline FourWords decode_mxfp4_pair(__m256i codes, uint8_t scale_a, uint8_t scale_b) {
  const Mxfp4ByteRow& a = kMxfp4ByteTable[scale_a];
  const Mxfp4ByteRow& b = kMxfp4ByteTable[scale_b];
  const __m256i low_bytes = load_lanes(a.low.data(), b.low.data());
  const __m256i high_bytes = load_lanes(a.high.data(), b.high.data());
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i even = _mm256_and_si256(codes, nibble);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
  const __m256i even_low = _mm256_shuffle_epi8(low_bytes, even);
  const __m256i even_high = _mm256_shuffle_epi8(high_bytes, even);
  const __m256i odd_low = _mm256_shuffle_epi8(low_bytes, odd);
  const __m256i odd_high = _mm256_shuffle_epi8(high_bytes, odd);
  return {{_mm256_unpacklo_epi8(even_low, even_high), _mm256_unpackhi_epi8(even_low, even_high),
           _mm256_unpacklo_epi8(odd_low, odd_high), _mm256_unpackhi_epi8(odd_low, odd_high)}};
}

// The last block of a row with an odd number of them: block b is code 0 under a's scale, and its
// inputs are zeros.
inline __m256i load_last_block(const uint8_t* codes) {
  return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
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

// BF16 words and MXFP4 blocks for AVX-512, as float32 vectors or for the BF16 dot product. Included
// by the AVX-512 matmul sources only.
//
// A vector holds 32 words. The float32 kernels take 16 of them at even places (shifted up), then 16
// at odd places (masked); the dot product takes pairs of neighbours.
//
//   BF16    words in the order of K
//   MXFP4   a block of 32: word i of 128-bit lane j is element 4 i + j, because lane j shifts the
//           block's 16-bit words right by 4 j to bring its codes down
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/avx512/intrinsics.h"
#include "kernels/mxfp4_table.h"

namespace rota::ROTA_AVX512 {
namespace {

inline __m512i load_words(const void* from) { return _mm512_loadu_si512(from); }

// The first `count` of 32 words, then zeros; no other memory is touched.
inline __m512i load_first_words(const void* from, int64_t count) {
  if (count >= 32) return load_words(from);
#ifdef ROTA_COMPILING_EMULATED_AVX512
  uint16_t copy[32] = {};
  std::memcpy(copy, from, static_cast<size_t>(count) * 2);
  return load_words(copy);
#else
  return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
#endif
}

inline __m512 even_floats(__m512i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
inline __m512 odd_floats(__m512i words) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// 16 bytes of codes to a block of 32 words. A code looks up its scaled BF16 value in the scale's
// row of the table; bits above an index's lowest five are ignored, and the fifth picks one of two
// copies.
inline __m512i decode_block(const void* codes, uint8_t scale) {
  const __m128i block = _mm_loadu_si128(static_cast<const __m128i*>(codes));
  const __m512i shifts =
      _mm512_set_epi64(0x000c000c000c000c, 0x000c000c000c000c, 0x0008000800080008,
                       0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);
  const __m512i index = _mm512_srlv_epi16(_mm512_broadcast_i32x4(block), shifts);
  const __m512i values = _mm512_load_si512(kMxfp4WordTable[scale].value.data());
  return _mm512_permutexvar_epi16(index, values);
}

// (l + l+8), then + 4, + 2, + 1, of four vectors at once.
inline __m128 reduce_four(__m512 a, __m512 b, __m512 c, __m512 d) {
  const auto quarters = [](__m512 v) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    const __m256 sum = _mm256_add_ps(_mm512_castps512_ps256(v), high);
    return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  };
  const __m128 qa = quarters(a), qb = quarters(b), qc = quarters(c), qd = quarters(d);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(qa, qb), _mm_unpackhi_ps(qa, qb));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(qc, qd), _mm_unpackhi_ps(qc, qd));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

}  // namespace
}  // namespace rota::ROTA_AVX512

// BF16 words and coded blocks for AVX-512, as float32 vectors or for the BF16 dot product. Included
// by the AVX-512 matmul sources only.
//
// A vector holds 32 words. The float32 kernels take 16 of them at even places (shifted up), then 16
// at odd places (masked); the dot product takes pairs of neighbours.
//
//   BF16    words in the order of K
//   FP8     likewise
//   MXFP4   a block of 32: word i of 128-bit lane j is element 4 i + j, because lane j shifts the
//   NVFP4   block's 16-bit words right by 4 j to bring its codes down
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/avx512/intrinsics.h"
#include "kernels/coded_rows.h"
#include "kernels/e2m1_tables.h"

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

// 16 bytes of E2M1 codes to 32 words whose lowest four bits are the codes; the others are anything.
inline __m512i e2m1_indices(const uint8_t* codes) {
  const __m128i block = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m512i shifts =
      _mm512_set_epi64(0x000c000c000c000c, 0x000c000c000c000c, 0x0008000800080008,
                       0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);
  return _mm512_srlv_epi16(_mm512_broadcast_i32x4(block), shifts);
}

inline __m512i load_row(const E2m1WordRow& row) { return _mm512_load_si512(row.value.data()); }

// A code looks up its scaled BF16 value in the scale's row of the table; bits above an index's
// lowest five are ignored, and the fifth picks one of two copies.
inline __m512i decode_block(Mxfp4Code, const uint8_t* codes, const uint8_t* scales) {
  return _mm512_permutexvar_epi16(e2m1_indices(codes), load_row(kMxfp4WordTable[scales[0]]));
}

// The first 16 elements are the lower half of each lane. Bit 5 of an index picks the table.
inline __m512i decode_block(Nvfp4Code, const uint8_t* codes, const uint8_t* scales) {
  const __m512i second = _mm512_set4_epi32(0x00200020, 0x00200020, 0, 0);
  const __m512i index =
      _mm512_or_si512(_mm512_and_si512(e2m1_indices(codes), _mm512_set1_epi16(15)), second);
  return _mm512_permutex2var_epi16(load_row(kNvfp4WordTable[scales[0]]), index,
                                   load_row(kNvfp4WordTable[scales[1]]));
}

// 32 bytes, one a word.
inline __m512i widen_bytes(const uint8_t* from) {
#ifdef ROTA_COMPILING_EMULATED_AVX512
  uint16_t words[32];
  for (int i = 0; i < 32; ++i) words[i] = from[i];
  return load_words(words);
#else
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
}

// 32 bytes of E4M3 to their words: seven bits look up the magnitude among 128.
inline __m512i decode_block(Fp8Code, const uint8_t* codes, const uint8_t* /*scales*/) {
  const __m512i wide = widen_bytes(codes);
  const auto part = [](int i) { return _mm512_load_si512(kE4m3Magnitudes.data() + 32 * i); };
  const __m512i low = _mm512_permutex2var_epi16(part(0), wide, part(1));
  const __m512i high = _mm512_permutex2var_epi16(part(2), wide, part(3));
  const __mmask32 is_high = _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x40));
  const __m512i sign =
      _mm512_and_si512(_mm512_slli_epi16(wide, 8), _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
  return _mm512_or_si512(_mm512_mask_blend_epi16(is_high, low, high), sign);
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

// BF16 words and coded blocks as float32 vectors of AVX2. Included by the AVX2 matmul sources only.
//
// A vector of 16 words gives two of 8 floats: the words at even places (shifted up) and at odd
// places (masked). Codes are decoded to such words too:
//
//   BF16    16 elements: floats k = 0 2 4 .. 14, then 1 3 5 .. 15
//   FP8     a block of 32 makes two such vectors
//   MXFP4   a block of 32 makes two vectors of words. The first gives the floats
//   NVFP4   0 4 8 12 1 5 9 13, then 2 6 10 14 3 7 11 15; the second the same with 16 added
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/coded_rows.h"
#include "kernels/e2m1_tables.h"

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

// The 16 bytes of E2M1 codes of a block: the low nibbles, elements 0 2 4.., go to the lower lane,
// the high ones to the upper.
[[gnu::always_inline]] inline __m256i e2m1_nibbles(const uint8_t* codes) {
  const __m256i twice =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_and_si256(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)),
                          _mm256_set1_epi8(15));
}

// A code looks up the two bytes of its scaled BF16 value in the scale's row.
[[gnu::always_inline]] inline TwoWords decode_block(Mxfp4Code, const uint8_t* codes,
                                                    const uint8_t* scales) {
  const E2m1ByteRow& row = kMxfp4ByteTable[scales[0]];
  const __m256i nibbles = e2m1_nibbles(codes);
  const __m256i low = _mm256_shuffle_epi8(load_words(row.low.data()), nibbles);
  const __m256i high = _mm256_shuffle_epi8(load_words(row.high.data()), nibbles);
  return {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
}

// The first scale's elements are the lower eight bytes of each lane, the second's the upper ones.
[[gnu::always_inline]] inline TwoWords decode_block(Nvfp4Code, const uint8_t* codes,
                                                    const uint8_t* scales) {
  const E2m1ByteRow &first = kNvfp4ByteTable[scales[0]], &second = kNvfp4ByteTable[scales[1]];
  const __m256i nibbles = e2m1_nibbles(codes);
  const auto look_up = [nibbles](const std::array<uint8_t, 32>& row) {
    return _mm256_shuffle_epi8(load_words(row.data()), nibbles);
  };
  return {{_mm256_unpacklo_epi8(look_up(first.low), look_up(first.high)),
           _mm256_unpackhi_epi8(look_up(second.low), look_up(second.high))}};
}

// 16 E4M3 codes, one a word. A normal number's exponent moves to BF16's bias, the eight subnormals
// are looked up, 0x7f becomes NaN.
[[gnu::always_inline]] inline __m256i decode_e4m3(__m256i wide) {
  constexpr int kBiases = (127 - 7) << 7;
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
  const __m256i normal =
      _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi16(kBiases));
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_load_si128(reinterpret_cast<const __m128i*>(kE4m3Magnitudes.data())));
  const __m256i bytes = _mm256_add_epi16(_mm256_mullo_epi16(magnitude, _mm256_set1_epi16(0x0202)),
                                         _mm256_set1_epi16(0x0100));
  const __m256i subnormal = _mm256_shuffle_epi8(table, bytes);
  const __m256i is_subnormal = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
  const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
  const __m256i nan_bits = _mm256_srli_epi16(is_nan, 1);
  const __m256i value =
      _mm256_or_si256(_mm256_blendv_epi8(normal, subnormal, is_subnormal), nan_bits);
  const __m256i sign =
      _mm256_and_si256(_mm256_slli_epi16(wide, 8), _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
  return _mm256_or_si256(value, sign);
}

[[gnu::always_inline]] inline TwoWords decode_block(Fp8Code, const uint8_t* codes,
                                                    const uint8_t* /*scales*/) {
  const auto wide = [codes](int at) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at)));
  };
  return {{decode_e4m3(wide(0)), decode_e4m3(wide(16))}};
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

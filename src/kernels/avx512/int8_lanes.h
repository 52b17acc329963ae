// AVX-512's vectors as kernels/lanes/matmul_int8.h uses them: 16 rows of weights. Without the 8-bit
// dot product (VNNI), products are added in pairs to 16 bits, four steps of them at most: 4 x 2 x
// 24 x 127 is below 2^15. Included by AVX-512 sources only.
#pragma once

#include <cstdint>

#include "kernels/avx512/intrinsics.h"
#include "kernels/coded_rows.h"
#include "kernels/int8_input.h"
#include "quant/fp8.h"

namespace rota::ROTA_AVX512 {
namespace {

struct Int8LanesBase {
  static constexpr int kRows = 16;
  static constexpr int kManyVectors = 3;
  static constexpr int kManyTokens = 4;
  static constexpr int kFewTokens = 4;
  using Ints = __m512i;
  using Floats = __m512;
  using Partial = __m512i;

  static Ints broadcast(int32_t x) { return _mm512_set1_epi32(x); }
  static Floats broadcast(float x) { return _mm512_set1_ps(x); }
  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats to_floats(Ints x) {
#ifdef ROTA_COMPILING_EMULATED_AVX512
    const __m256 low = _mm256_cvtepi32_ps(_mm512_castsi512_si256(x));
    const __m256 high = _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(x, 1));
    const Ints both = _mm512_castsi256_si512(_mm256_castps_si256(low));
    return _mm512_castsi512_ps(_mm512_inserti64x4(both, _mm256_castps_si256(high), 1));
#else
    return _mm512_cvtepi32_ps(x);
#endif
  }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }

  // Vector i holds rows i, 4 + i, 8 + i, 12 + i; then 4 x 4 dwords are transposed in each lane.
  static void transpose(const uint8_t* const (&codes)[kRows], Ints (&out)[4]) {
    Ints v[4];
    for (int i = 0; i < 4; ++i) {
      const auto row = [&codes, i](int lane) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[4 * lane + i]));
      };
      const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1);
      const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row(2)), row(3), 1);
      v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    const Ints low01 = _mm512_unpacklo_epi32(v[0], v[1]);
    const Ints low23 = _mm512_unpacklo_epi32(v[2], v[3]);
    const Ints high01 = _mm512_unpackhi_epi32(v[0], v[1]);
    const Ints high23 = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(low01, low23);
    out[1] = _mm512_unpackhi_epi64(low01, low23);
    out[2] = _mm512_unpacklo_epi64(high01, high23);
    out[3] = _mm512_unpackhi_epi64(high01, high23);
  }

  static Ints look_up(Ints nibbles) {
    // Twice 0 .5 1 1.5 2 3 4 6 and their negatives, plus 12.
    const Ints table = _mm512_set4_epi32(0x00040608, 0x090a0b0c, 0x18141210, 0x0f0e0d0c);
    return _mm512_shuffle_epi8(table, nibbles);
  }
  static Ints low_weights(Ints bytes) {
    return look_up(_mm512_and_si512(bytes, _mm512_set1_epi32(0x0f0f0f0f)));
  }
  static Ints high_weights(Ints bytes) { return low_weights(_mm512_srli_epi16(bytes, 4)); }

  static Ints widen(const uint8_t* bytes) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m256i low = _mm256_cvtepu8_epi32(packed);
    const __m256i high = _mm256_cvtepu8_epi32(_mm_srli_si128(packed, 8));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  // E8M0: the exponent; 0 is subnormal, 255 NaN.
  static Floats scales(Mxfp4Code, const uint8_t* bytes) {
    const Ints wide = widen(bytes);
    const Ints exponents = _mm512_slli_epi32(wide, 23);
    const Ints values = _mm512_max_epi32(exponents, broadcast(0x00400000));
    return nan_where(_mm512_cmpeq_epi32_mask(wide, broadcast(255)), _mm512_castsi512_ps(values));
  }
  // E4M3: as a float's exponent and mantissa, which is 2^120 times too small.
  static Floats scales(Nvfp4Code, const uint8_t* bytes) {
    const Ints wide = widen(bytes);
    const Ints magnitude = _mm512_and_si512(wide, broadcast(0x7f));
    const Ints sign = _mm512_slli_epi32(_mm512_and_si512(wide, broadcast(0x80)), 24);
    const Ints bits = _mm512_or_si512(_mm512_slli_epi32(magnitude, 20), sign);
    const Floats values = _mm512_mul_ps(_mm512_castsi512_ps(bits), broadcast(0x1p120f));
    return nan_where(_mm512_cmpeq_epi32_mask(magnitude, broadcast(int32_t{kE4m3Nan})), values);
  }
  static Floats nan_where(__mmask16 where, Floats values) {
    return _mm512_mask_blend_ps(where, values, broadcast(std::numeric_limits<float>::quiet_NaN()));
  }
};

struct Int8Lanes : Int8LanesBase {
  static Ints add_pairs(Partial partial) {
#ifdef ROTA_COMPILING_EMULATED_AVX512
    return simde_mm512_madd_epi16(partial, _mm512_set1_epi16(1));  // its plain name is another's
#else
    return _mm512_madd_epi16(partial, _mm512_set1_epi16(1));
#endif
  }
  static Partial begin(Ints) { return _mm512_setzero_si512(); }
  static Partial step(Partial partial, Ints weights, Ints inputs) {
    return _mm512_add_epi16(partial, _mm512_maddubs_epi16(weights, inputs));
  }
  static Ints end(Ints total, Partial partial) {
    return _mm512_add_epi32(total, add_pairs(partial));
  }
};

#ifdef __AVX512VNNI__
struct Int8VnniLanes : Int8LanesBase {
  static Partial begin(Ints total) { return total; }
  static Partial step(Partial partial, Ints weights, Ints inputs) {
    return _mm512_dpbusd_epi32(partial, weights, inputs);
  }
  static Ints end(Ints, Partial partial) { return partial; }
};
#endif

}  // namespace
}  // namespace rota::ROTA_AVX512

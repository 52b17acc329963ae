// AVX2's vector type, as the shared kernels in kernels/lanes/ use it. Included by AVX2 sources
// only.
//
// "First" functions work on the first n lanes (0 <= n <= kCount; more means all): the other lanes
// read as zero, and their memory is never touched.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace rota::avx2 {
namespace {  // internal: no copy of these may serve a CPU without AVX2

struct Lanes {
  using Vec = __m256;
  using Mask = __m256;
  static constexpr int64_t kCount = 8;
  // Attention's blocking: columns (vectors) beside `rows` accumulators, of 16 registers.
  static constexpr int columns_beside(int rows) { return rows <= 2 ? 4 : 2; }

  struct Two {
    Vec even, odd;
  };

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec broadcast(float x) { return _mm256_set1_ps(x); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static Vec load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_first(float* p, int64_t n, Vec v) { _mm256_maskstore_ps(p, first(n), v); }

  static Vec load_bf16(const Bf16* p) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Vec load_bf16_first(const Bf16* p, int64_t n) {
    if (n >= kCount) return load_bf16(p);
    alignas(16) Bf16 copy[kCount] = {};
    for (int64_t i = 0; i < n; ++i) copy[i] = p[i];
    return load_bf16(copy);
  }
  // 16 BF16 values, even and odd ones apart.
  static Two load_bf16_pairs(const Bf16* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, high))};
  }
  // Of 16 consecutive values: lanes 0, 2, 4.. and 1, 3, 5..
  static Two deinterleave(Vec low, Vec high) {
    const __m256 even = _mm256_shuffle_ps(low, high, 0x88);
    const __m256 odd = _mm256_shuffle_ps(low, high, 0xdd);
    return {in_order(even), in_order(odd)};
  }

  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
  static Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  // The bound is `a`: a NaN in `b` stays.
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static Vec negative_magnitude(Vec v) { return _mm256_or_ps(v, _mm256_set1_ps(-0.0f)); }

  static Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Vec select(Mask mask, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, mask); }
  // Lanes begin <= i < end of v, `otherwise` elsewhere.
  static Vec keep(Vec v, int64_t begin, int64_t end, Vec otherwise) {
    const __m256i low = first(begin);
    const __m256i high = first(end);
    return select(_mm256_castsi256_ps(_mm256_andnot_si256(low, high)), v, otherwise);
  }

  // The low nine bits of each lane as the exponent field of a float: 2^(bits - 127).
  static Vec power_of_low_bits(Vec v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 23));
  }

  static float first_lane(Vec v) { return _mm256_cvtss_f32(v); }
  static float sum(Vec v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float largest(Vec v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

 private:
  // All ones in the lanes below n.
  static __m256i first(int64_t n) {
    const int count = n < 0 ? 0 : n > kCount ? static_cast<int>(kCount) : static_cast<int>(n);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec widen(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  // Undoes the order that an in-lane shuffle of two vectors leaves.
  static Vec in_order(Vec v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
  }
};

}  // namespace
}  // namespace rota::avx2

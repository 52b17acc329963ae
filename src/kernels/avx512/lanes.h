// AVX-512's vector type, as the shared kernels in kernels/lanes/ use it. Included by AVX-512
// sources only.
//
// "First" functions work on the first n lanes (0 <= n <= kCount; more means all): the other lanes
// read as zero, and their memory is never touched. SIMDe lacks the masked loads and stores, so the
// emulated build copies lane by lane.
#pragma once

#include <cstdint>

#include "kernels/avx512/intrinsics.h"
#include "tensor/dtype.h"

namespace rota::ROTA_AVX512 {
namespace {  // internal: no copy of these may serve a CPU without AVX-512

struct Lanes {
  using Vec = __m512;
  using Mask = __mmask16;
  static constexpr int64_t kCount = 16;
  // Attention's blocking: columns (vectors) beside `rows` accumulators, of 32 registers.
  static constexpr int columns_beside(int /*rows*/) { return 4; }

  struct Two {
    Vec even, odd;
  };

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec broadcast(float x) { return _mm512_set1_ps(x); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }

#ifdef ROTA_COMPILING_EMULATED_AVX512
  static Vec load_first(const float* p, int64_t n) {
    float copy[kCount] = {};
    for (int64_t i = 0; i < n && i < kCount; ++i) copy[i] = p[i];
    return load(copy);
  }
  static void store_first(float* p, int64_t n, Vec v) {
    float copy[kCount];
    store(copy, v);
    for (int64_t i = 0; i < n && i < kCount; ++i) p[i] = copy[i];
  }
  static Vec load_bf16_first(const Bf16* p, int64_t n) {
    float copy[kCount] = {};
    for (int64_t i = 0; i < n && i < kCount; ++i) copy[i] = to_float(p[i]);
    return load(copy);
  }
  static Vec load_bf16(const Bf16* p) { return load_bf16_first(p, kCount); }
#else
  static Vec load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_first(float* p, int64_t n, Vec v) { _mm512_mask_storeu_ps(p, first(n), v); }
  static Vec load_bf16_first(const Bf16* p, int64_t n) {
    return widen(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static Vec load_bf16(const Bf16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
#endif
  // 32 BF16 values, even and odd ones apart.
  static Two load_bf16_pairs(const Bf16* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, high))};
  }
  // Of 32 consecutive values: lanes 0, 2, 4.. and 1, 3, 5..
  static Two deinterleave(Vec low, Vec high) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
  }

  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
  static Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  // The bound is `a`: a NaN in `b` stays.
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static Vec negative_magnitude(Vec v) { return _mm512_or_ps(v, _mm512_set1_ps(-0.0f)); }

  static Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Vec select(Mask mask, Vec yes, Vec no) { return _mm512_mask_mov_ps(no, mask, yes); }
  // Lanes begin <= i < end of v, `otherwise` elsewhere.
  static Vec keep(Vec v, int64_t begin, int64_t end, Vec otherwise) {
    return select(static_cast<Mask>(first(end) & ~first(begin)), v, otherwise);
  }

  // The low nine bits of each lane as the exponent field of a float: 2^(bits - 127).
  static Vec power_of_low_bits(Vec v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 23));
  }

  static float first_lane(Vec v) { return _mm_cvtss_f32(_mm512_castps512_ps128(v)); }
  static float sum(Vec v) {
    v = add(v, across_8(v));
    v = add(v, across_4(v));
    __m128 s = _mm512_castps512_ps128(v);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float largest(Vec v) {
    v = max(v, across_8(v));
    v = max(v, across_4(v));
    __m128 s = _mm512_castps512_ps128(v);
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

 private:
  // Lane i of the result is lane i ^ 8, or i ^ 4, of v.
  static Vec across_8(Vec v) {
    return _mm512_permutexvar_ps(
        _mm512_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7), v);
  }
  static Vec across_4(Vec v) {
    return _mm512_permutexvar_ps(
        _mm512_setr_epi32(4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11), v);
  }
  // Ones for the lanes below n.
  static Mask first(int64_t n) {
    const auto count = static_cast<unsigned>(n < 0 ? 0 : n > kCount ? kCount : n);
    return static_cast<Mask>((1u << count) - 1u);
  }
#ifndef ROTA_COMPILING_EMULATED_AVX512
  static Vec widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
#endif
};

}  // namespace
}  // namespace rota::ROTA_AVX512

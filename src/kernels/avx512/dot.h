// How a vector of 32 words meets its inputs: the two arithmetics of the AVX-512 matmul, with the
// same members, so that its loops are written once (matmul_loops.h).
//
//   Input     what is kept in registers of 32 prepared elements
//   kTokens   of the register tile of 6 rows: sums, inputs and a row's weights fill 32 registers
#pragma once

#include "kernels/avx512/words.h"

namespace rota::ROTA_AVX512 {
namespace {

// float32 FMA; prepared input: 16 floats for the even words, then 16 for the odd ones.
struct FloatDot {
  static constexpr int kTokens = 3;
  static constexpr int64_t kInputBytes = 4;
  struct Input {
    __m512 even, odd;
  };
  static Input load(const std::byte* x) {
    const auto* floats = reinterpret_cast<const float*>(x);
    return {_mm512_load_ps(floats), _mm512_load_ps(floats + 16)};
  }
  static __m512 add(__m512 sum, __m512i words, const Input& x) {
    sum = _mm512_fmadd_ps(even_floats(words), x.even, sum);
    return _mm512_fmadd_ps(odd_floats(words), x.odd, sum);
  }
};

#if defined(__AVX512BF16__) || defined(ROTA_COMPILING_EMULATED_AVX512)
// The BF16 dot product; prepared input: 32 BF16 values in the order of the words.
struct Bf16Dot {
  static constexpr int kTokens = 4;
  static constexpr int64_t kInputBytes = 2;
  using Input = __m512i;
  static Input load(const std::byte* x) { return _mm512_load_si512(static_cast<const void*>(x)); }
  static __m512 add(__m512 sum, __m512i words, Input x) {
#ifdef ROTA_COMPILING_EMULATED_AVX512
    // As the instruction is defined (odd element first), but for subnormals, which it takes as
    // zero.
    sum = _mm512_fmadd_ps(odd_floats(words), odd_floats(x), sum);
    return _mm512_fmadd_ps(even_floats(words), even_floats(x), sum);
#else
    return _mm512_dpbf16_ps(sum, __builtin_bit_cast(__m512bh, words),
                            __builtin_bit_cast(__m512bh, x));
#endif
  }
};
#endif

}  // namespace
}  // namespace rota::ROTA_AVX512

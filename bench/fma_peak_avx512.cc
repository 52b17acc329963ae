#include <immintrin.h>

#include "fma_peak.h"
#include "fma_peak_loop.h"

namespace rota::bench {

double avx512_fma_peak(double seconds) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return 32 * steps_per_second(one, seconds,
                               [one](__m512 sum) { return _mm512_fmadd_ps(one, one, sum); });
}

double avx512_bf16_dot_peak(double seconds) {
  const __m512 start = _mm512_set1_ps(1.0f);
  const auto one = __builtin_bit_cast(__m512bh, _mm512_set1_epi16(0x3f80));
  return 64 * steps_per_second(start, seconds,
                               [one](__m512 sum) { return _mm512_dpbf16_ps(sum, one, one); });
}

}  // namespace rota::bench

#include <immintrin.h>

#include "fma_peak.h"
#include "fma_peak_loop.h"

namespace rota::bench {

double avx2_fma_peak(double seconds) {
  const __m256 one = _mm256_set1_ps(1.0f);
  return 16 * steps_per_second(one, seconds,
                               [one](__m256 sum) { return _mm256_fmadd_ps(one, one, sum); });
}

}  // namespace rota::bench

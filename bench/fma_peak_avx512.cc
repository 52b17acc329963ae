#include "fma_peak.h"
#include "fma_peak_loop.h"

namespace rota::bench {

double avx512_fma_peak(double seconds) {
  return 32 * instructions_per_second(seconds, [] { ROTA_TWELVE_CHAINS("vfmadd231ps", "zmm"); });
}

double avx512_bf16_dot_peak(double seconds) {
  return 64 * instructions_per_second(seconds, [] { ROTA_TWELVE_CHAINS("vdpbf16ps", "zmm"); });
}

}  // namespace rota::bench

#include "fma_peak.h"
#include "fma_peak_loop.h"

namespace rota::bench {

double avx2_fma_peak(double seconds) {
  return 16 * instructions_per_second(seconds, [] { ROTA_TWELVE_CHAINS("vfmadd231ps", "ymm"); });
}

}  // namespace rota::bench

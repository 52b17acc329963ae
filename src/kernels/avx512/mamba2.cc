// Mamba2's kernels: kernels/lanes/mamba2.h over AVX-512's vectors.
#include "kernels/lanes/mamba2.h"

#include "kernels/avx512/avx512_kernels.h"
#include "kernels/avx512/lanes.h"

namespace rota::ROTA_AVX512 {

void causal_conv(const CausalConvArgs& args) { lanes::causal_conv<Lanes>(args); }
void ssm_scan(const SsmScanArgs& args) { lanes::ssm_scan<Lanes>(args); }
void gated_norm(const GatedNormArgs& args) { lanes::gated_norm<Lanes>(args); }

}  // namespace rota::ROTA_AVX512

// Mamba2's kernels: kernels/lanes/mamba2.h over AVX2's vectors.
#include "kernels/lanes/mamba2.h"

#include "kernels/avx2/avx2_kernels.h"
#include "kernels/avx2/lanes.h"

namespace rota::avx2 {

void causal_conv(const CausalConvArgs& args) { lanes::causal_conv<Lanes>(args); }
void ssm_scan(const SsmScanArgs& args) { lanes::ssm_scan<Lanes>(args); }
void gated_norm(const GatedNormArgs& args) { lanes::gated_norm<Lanes>(args); }

}  // namespace rota::avx2

// The AVX-512 kernels (F, BW, DQ, VL; *_bf16.cc also BF16, *_vnni.cc also VNNI), for the CPU and
// through SIMDe. The contracts are those of KernelTable (kernels/kernels.h), which kernels.cc fills
// with them. What has no _bf16 twin serves both tables.
#pragma once

#include "kernels/kernels.h"

namespace rota::avx512 {
#include "kernels/avx512/declare_kernels.inc"
}  // namespace rota::avx512

#ifdef ROTA_EMULATE_AVX512
namespace rota::avx512_emulated {
#include "kernels/avx512/declare_kernels.inc"
}  // namespace rota::avx512_emulated
#endif

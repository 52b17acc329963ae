// How many multiply-adds this CPU can do at most: independent chains in registers, nothing else. A
// product and an addition are two operations.
//
//   const double peak = measure_fma_peak(FmaKind::kAvx512Bf16Dot, threads, 0.05);   // FLOP/s
#pragma once

#include "platform/cpu.h"

namespace rota {

// The instruction that a matmul kernel lives by.
enum class FmaKind { kNone, kAvx2, kAvx512, kAvx512Bf16Dot };

// What the kernels of `isa` use; kNone where no peak is known (ref). bf16: inputs are BF16.
FmaKind fma_kind(const CpuFeatures& cpu, Isa isa, bool bf16);

// FLOP/s of the calling thread, measured for about `seconds`. The caller knows that the CPU has the
// instruction. kNone: 0.
double fma_peak(FmaKind kind, double seconds);

// The sum over `threads` threads, each on its own core; 0: one for each physical core.
double measure_fma_peak(FmaKind kind, int threads, double seconds);

}  // namespace rota

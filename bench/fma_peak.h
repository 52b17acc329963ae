// How many multiply-adds this CPU can do at most: independent chains in registers, nothing else.
#pragma once

namespace rota::bench {

// FLOP/s of one thread, measured for about `seconds`. The caller knows that the CPU has them.
double avx2_fma_peak(double seconds);
double avx512_fma_peak(double seconds);
double avx512_bf16_dot_peak(double seconds);  // a product and an addition are two operations

}  // namespace rota::bench

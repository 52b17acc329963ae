// The measured loop of fma_peak_*.cc, which differ in compile flags.
//
// ROTA_TWELVE_CHAINS(INSTRUCTION, REGISTER) is assembly: 1000 rounds of INSTRUCTION on twelve sums of
// their own, which hide a latency of 4 cycles on 2 units. (Written with intrinsics, the sums are moved or
// spilled by the compiler: half the peak.) Register 0 holds the factors, all zero: values do not
// change the speed.
#pragma once

#include <chrono>

#define ROTA_CHAIN(INSTRUCTION, REGISTER, N) \
  INSTRUCTION " %%" REGISTER "0, %%" REGISTER "0, %%" REGISTER #N "\n"
#define ROTA_TWELVE_CHAINS(INSTRUCTION, REGISTER) \
  asm volatile(                                                                                 \
      "vpxor %%xmm0, %%xmm0, %%xmm0\n"                                                          \
      "mov $1000, %%ecx\n"                                                                      \
      "1:\n" ROTA_CHAIN(INSTRUCTION, REGISTER, 1) ROTA_CHAIN(INSTRUCTION, REGISTER, 2)          \
          ROTA_CHAIN(INSTRUCTION, REGISTER, 3) ROTA_CHAIN(INSTRUCTION, REGISTER, 4)             \
              ROTA_CHAIN(INSTRUCTION, REGISTER, 5) ROTA_CHAIN(INSTRUCTION, REGISTER, 6)         \
                  ROTA_CHAIN(INSTRUCTION, REGISTER, 7) ROTA_CHAIN(INSTRUCTION, REGISTER, 8)     \
                      ROTA_CHAIN(INSTRUCTION, REGISTER, 9) ROTA_CHAIN(INSTRUCTION, REGISTER, 10) \
                          ROTA_CHAIN(INSTRUCTION, REGISTER, 11)                                 \
                              ROTA_CHAIN(INSTRUCTION, REGISTER, 12) "dec %%ecx\n"               \
      "jnz 1b\n"                                                                                \
      :                                                                                         \
      :                                                                                         \
      : "ecx", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
        "xmm10", "xmm11", "xmm12", "cc")

namespace rota::bench {
namespace {

// Instructions a second, where a call of `block` runs 12,000.
template <typename Block>
double instructions_per_second(double seconds, Block block) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  double count = 0;
  std::chrono::duration<double> taken{};
  do {
    for (int i = 0; i < 100; ++i) block();
    count += 100 * 12000.0;
    taken = Clock::now() - begin;
  } while (taken.count() < seconds);
  return count / taken.count();
}

}  // namespace
}  // namespace rota::bench

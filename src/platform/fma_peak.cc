#include "platform/fma_peak.h"

#include <chrono>
#include <vector>

#include "platform/thread_team.h"

// Assembly: 1000 rounds of INSTRUCTION on twelve sums of their own, which hide a latency of 4
// cycles on 2 units. (Written with intrinsics, the sums are moved or spilled by the compiler: half
// the peak.) Register 0 holds the factors, all zero: values do not change the speed.
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

namespace rota {
namespace {

constexpr int kBlocksBetweenLooks = 100;
constexpr double kInstructionsOfABlock = 12000;

// `block` runs kInstructionsOfABlock instructions.
template <typename Block>
double instructions_per_second(double seconds, Block block) {
  using SteadyClock = std::chrono::steady_clock;
  const SteadyClock::time_point begin = SteadyClock::now();
  double count = 0;
  std::chrono::duration<double> taken{};
  do {
    for (int i = 0; i < kBlocksBetweenLooks; ++i) block();
    count += kBlocksBetweenLooks * kInstructionsOfABlock;
    taken = SteadyClock::now() - begin;
  } while (taken.count() < seconds);
  return count / taken.count();
}

}  // namespace

FmaKind fma_kind(const CpuFeatures& cpu, Isa isa, bool bf16) {
  if (isa == Isa::kAvx2) return FmaKind::kAvx2;
  if (isa != Isa::kAvx512) return FmaKind::kNone;
  return bf16 && cpu.avx512_bf16 ? FmaKind::kAvx512Bf16Dot : FmaKind::kAvx512;
}

double fma_peak(FmaKind kind, double seconds) {
  // FLOP of one instruction: lanes, times two; the dot product adds two products in each lane.
  constexpr double kYmm = 16, kZmm = 32, kZmmDot = 64;
  switch (kind) {
    case FmaKind::kNone:
      return 0;
    case FmaKind::kAvx2:
      return kYmm *
             instructions_per_second(seconds, [] { ROTA_TWELVE_CHAINS("vfmadd231ps", "ymm"); });
    case FmaKind::kAvx512:
      return kZmm *
             instructions_per_second(seconds, [] { ROTA_TWELVE_CHAINS("vfmadd231ps", "zmm"); });
    case FmaKind::kAvx512Bf16Dot:
      return kZmmDot *
             instructions_per_second(seconds, [] { ROTA_TWELVE_CHAINS("vdpbf16ps", "zmm"); });
  }
  return 0;
}

double measure_fma_peak(FmaKind kind, int threads, double seconds) {
  ThreadTeam team({.threads = threads, .pin = true});
  std::vector<double> peaks(static_cast<size_t>(team.size()));
  // As many items as members, each as long as the measurement: every member takes one.
  team.parallel_for(team.size(), [&](int64_t item, int) {
    peaks[static_cast<size_t>(item)] = fma_peak(kind, seconds);
  });
  double sum = 0;
  for (const double peak : peaks) sum += peak;
  return sum;
}

}  // namespace rota

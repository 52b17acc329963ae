#include "platform/fma_peak.h"

#include <gtest/gtest.h>

namespace rota {
namespace {

CpuFeatures with_bf16(bool bf16) {
  CpuFeatures cpu;
  cpu.avx512_bf16 = bf16;
  return cpu;
}

TEST(FmaPeak, TheInstructionIsTheKernelsOwn) {
  EXPECT_EQ(fma_kind(with_bf16(true), Isa::kAvx512, true), FmaKind::kAvx512Bf16Dot);
  EXPECT_EQ(fma_kind(with_bf16(true), Isa::kAvx512, false), FmaKind::kAvx512);
  EXPECT_EQ(fma_kind(with_bf16(false), Isa::kAvx512, true), FmaKind::kAvx512);
  EXPECT_EQ(fma_kind(with_bf16(true), Isa::kAvx2, true), FmaKind::kAvx2);
  EXPECT_EQ(fma_kind(with_bf16(true), Isa::kRef, true), FmaKind::kNone);
}

TEST(FmaPeak, IsMeasuredWhereThereIsOne) {
  EXPECT_EQ(measure_fma_peak(FmaKind::kNone, 1, 0.001), 0);
  const CpuFeatures cpu = detect_cpu();
  if (!cpu.avx2) GTEST_SKIP() << "no AVX2";
  EXPECT_GT(measure_fma_peak(fma_kind(cpu, Isa::kAvx2, false), 1, 0.001), 0);
}

}  // namespace
}  // namespace rota

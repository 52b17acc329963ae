#include "platform/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "platform/topology.h"

namespace rota {
namespace {

CpuFeatures cpu_with(bool avx2, bool avx512) {
  CpuFeatures cpu;
  cpu.model_name = "Test CPU";
  cpu.avx2 = avx2;
  cpu.avx512 = avx512;
  return cpu;
}

TEST(Cpu, TheBestSetIsChosen) {
  EXPECT_EQ(*choose_isa(cpu_with(false, false), nullptr), Isa::kRef);
  EXPECT_EQ(*choose_isa(cpu_with(true, false), ""), Isa::kAvx2);
  EXPECT_EQ(*choose_isa(cpu_with(true, true), nullptr), Isa::kAvx512);
}

TEST(Cpu, ASetCanBeForced) {
  EXPECT_EQ(*choose_isa(cpu_with(true, true), "ref"), Isa::kRef);
  EXPECT_EQ(*choose_isa(cpu_with(true, true), "avx2"), Isa::kAvx2);
  EXPECT_EQ(*choose_isa(cpu_with(true, true), "avx512"), Isa::kAvx512);
}

TEST(Cpu, ForcingAMissingSetSaysWhatIsMissing) {
  const auto result = choose_isa(cpu_with(true, false), "avx512");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(result.status().message().find("AVX-512"), std::string::npos);
  EXPECT_NE(result.status().message().find("Test CPU"), std::string::npos);
  EXPECT_FALSE(choose_isa(cpu_with(false, false), "avx2").ok());
}

TEST(Cpu, AnUnknownSetIsAnInvalidArgument) {
  const auto result = choose_isa(cpu_with(true, true), "sse9");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
}

TEST(Cpu, DetectionAgreesWithTheKernelsList) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) == 0) flags = line + " ";
  }
  const auto listed = [&](const char* flag) {
    return flags.find(std::string(" ") + flag + " ") != std::string::npos;
  };
  const CpuFeatures cpu = detect_cpu();
  EXPECT_EQ(cpu.avx2, listed("avx2") && listed("fma") && listed("f16c"));
  EXPECT_EQ(cpu.avx512,
            listed("avx512f") && listed("avx512bw") && listed("avx512dq") && listed("avx512vl"));
  EXPECT_EQ(cpu.avx512_bf16, cpu.avx512 && listed("avx512_bf16"));
  EXPECT_EQ(cpu.avx512_vnni, cpu.avx512 && listed("avx512_vnni"));
  EXPECT_FALSE(cpu.model_name.empty());
  EXPECT_NE(describe(cpu).find(cpu.model_name), std::string::npos);
}

TEST(Cpu, CoresAreAmongTheLogicalCpus) {
  const UsableCpus& cpus = usable_cpus();
  ASSERT_FALSE(cpus.logical.empty());
  ASSERT_FALSE(cpus.one_per_core.empty());
  EXPECT_LE(cpus.one_per_core.size(), cpus.logical.size());
  const CpuFeatures cpu = detect_cpu();
  EXPECT_EQ(cpu.logical_cpus, static_cast<int>(cpus.logical.size()));
  EXPECT_EQ(cpu.physical_cores, static_cast<int>(cpus.one_per_core.size()));
}

}  // namespace
}  // namespace rota

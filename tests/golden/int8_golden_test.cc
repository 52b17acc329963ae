// Experts with inputs in 8 bits: what they lose against BF16 inputs, in the measures that the
// goldens bound bfloat16 with. The bounds are what was measured, rounded up: see docs/backends.md.
#include <gtest/gtest.h>

#include "golden/cases.h"
#include "golden/checks.h"
#include "golden/compare.h"
#include "golden/golden_pack.h"

namespace rota::golden {
namespace {

struct Loss {
  const char* pack;
  const char* exact;
  const char* int8;
  double top1_agreement;
  double kl_mean;
};
constexpr Loss kLosses[] = {
    {"gptoss-mxfp4-h160", "cpu_mxfp4_bf16", "cpu_mxfp4_int8", 0.92, 7e-3},
    {"gptoss-mxfp4-h288", "cpu_mxfp4_bf16", "cpu_mxfp4_int8", 0.96, 2.5e-3},
    {"nemotron-nvfp4-h112", "cpu_nvfp4_bf16", "cpu_nvfp4_int8", 0.955, 1.1e-2},
};

class Int8Goldens : public ::testing::TestWithParam<const KernelTable*> {};

std::vector<StepResult> runs(const GoldenPack& pack, const KernelTable& kernels,
                             const char* backend) {
  const Case c{.pack = pack.name,
               .kernels = &kernels,
               .compute = Compute::kBf16,
               .moe = {.backend = backend}};
  const auto harness = Harness::load(pack.model_dir, c.options());
  ROTA_CHECK(harness.ok(), harness.status().message());
  return teacher_forced_runs(pack, **harness);
}

TEST_P(Int8Goldens, LoseAsMuchAgainstBf16AsIsDocumented) {
  for (const Loss& loss : kLosses) {
    const auto pack = GoldenPack::open(small_pack_dir(loss.pack));
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    const std::vector<StepResult> exact = runs(*pack, *GetParam(), loss.exact);
    const std::vector<StepResult> int8 = runs(*pack, *GetParam(), loss.int8);
    Noise noise;
    for (size_t i = 0; i < exact.size(); ++i) noise.add(int8[i], exact[i]);
    EXPECT_GE(noise.top1_agreement(), loss.top1_agreement) << loss.pack;
    EXPECT_LE(noise.kl_mean(), loss.kl_mean) << loss.pack;
    EXPECT_GT(noise.kl_mean(), 0) << loss.pack << ": inputs were not rounded at all";
  }
}

std::vector<const KernelTable*> vector_tables() {
  std::vector<const KernelTable*> tables = available_kernels(detect_cpu());
  std::erase_if(tables, [](const KernelTable* table) { return table->isa == Isa::kRef; });
  return tables;
}

INSTANTIATE_TEST_SUITE_P(Isa, Int8Goldens, ::testing::ValuesIn(vector_tables()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace rota::golden

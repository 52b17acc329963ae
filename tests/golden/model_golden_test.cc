// Whole models against their goldens: float32 closely, bfloat16 in the measures that golden.json
// bounds.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "golden/cases.h"
#include "golden/checks.h"
#include "golden/golden_pack.h"

namespace rota::golden {
namespace {

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name(); }

class Float32Goldens : public ::testing::TestWithParam<Case> {};

TEST_P(Float32Goldens, LogitsHiddenRoutingAndGreedyTokens) {
  const auto pack = GoldenPack::open(small_pack_dir(GetParam().pack));
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  const auto harness = Harness::load(pack->model_dir, GetParam().options());
  ASSERT_TRUE(harness.ok()) << harness.status().message();
  check_pack_in_float32(*pack, **harness);
}

INSTANTIATE_TEST_SUITE_P(Packs, Float32Goldens, ::testing::ValuesIn(pack_cases(Compute::kFloat32)),
                         case_name);

// The float32 runs that bfloat16 is measured against: by the scalar kernels, made once for each
// pack.
const std::vector<StepResult>& float32_runs(const GoldenPack& pack) {
  static std::map<std::string, std::vector<StepResult>> known;
  auto at = known.find(pack.name);
  if (at == known.end()) {
    const Case c{.pack = pack.name,
                 .kernels = &kernels_for(Isa::kRef, detect_cpu()),
                 .compute = Compute::kFloat32,
                 .moe = {}};
    const auto harness = Harness::load(pack.model_dir, c.options());
    ROTA_CHECK(harness.ok(), harness.status().message());
    at = known.emplace(pack.name, teacher_forced_runs(pack, **harness)).first;
  }
  return at->second;
}

class Bf16Goldens : public ::testing::TestWithParam<Case> {};

TEST_P(Bf16Goldens, NoiseIsWithinTheBoundsOfAnHonestEngine) {
  const auto pack = GoldenPack::open(small_pack_dir(GetParam().pack));
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  const auto harness = Harness::load(pack->model_dir, GetParam().options());
  ASSERT_TRUE(harness.ok()) << harness.status().message();
  const std::vector<StepResult>& expected = float32_runs(*pack);
  check_bf16_noise(*pack, teacher_forced_runs(*pack, **harness), expected);
}

INSTANTIATE_TEST_SUITE_P(Packs, Bf16Goldens, ::testing::ValuesIn(pack_cases(Compute::kBf16)),
                         case_name);

}  // namespace
}  // namespace rota::golden

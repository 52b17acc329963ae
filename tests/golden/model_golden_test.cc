// Whole models against their goldens: float32 closely, bfloat16 in the measures that golden.json
// bounds.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "golden/cases.h"
#include "golden/checks.h"
#include "golden/compare.h"
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

// Prompt and greedy tokens of every prompt of a pack, one step each.
std::vector<StepResult> teacher_forced_runs(const GoldenPack& pack, Harness& harness) {
  std::vector<StepResult> runs;
  for (const Prompt& prompt : pack.prompts) {
    const int sequence = harness.new_sequence();
    auto run = harness.step(sequence, prompt.teacher_forced());
    ROTA_CHECK(run.ok(), run.status().message());
    runs.push_back(std::move(run).value());
    harness.end_sequence(sequence);
  }
  return runs;
}

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
  const std::vector<StepResult> found = teacher_forced_runs(*pack, **harness);
  Noise noise;
  for (size_t i = 0; i < found.size(); ++i) noise.add(found[i], expected[i]);
  EXPECT_LE(noise.median_of_max_abs(), pack->bf16.median_of_max_abs);
  EXPECT_LE(noise.max_abs_where_all_router_ids_agree(),
            pack->bf16.max_abs_where_all_router_ids_agree);
  EXPECT_LE(noise.kl_mean(), pack->bf16.kl_mean);
  EXPECT_GE(noise.top1_agreement(), pack->bf16.top1_agreement);
  EXPECT_LE(noise.router_flip_rate(), pack->bf16.router_flip_rate);
  // It is bfloat16 at all: a float32 run would be a thousand times closer.
  EXPECT_GT(noise.median_of_max_abs(), 20 * pack->fp32_logits_max_abs);
}

INSTANTIATE_TEST_SUITE_P(Packs, Bf16Goldens, ::testing::ValuesIn(pack_cases(Compute::kBf16)),
                         case_name);

}  // namespace
}  // namespace rota::golden

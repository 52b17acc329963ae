#include "moe/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rota {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

MoeConfig config() {
  MoeConfig config;
  config.hidden = 96;
  config.intermediate = 80;
  config.router = {.experts = 10, .top_k = 3};
  return config;
}

Result<MoePlan> plan(const MoeParallel& parallel) {
  return plan_moe(config(), {.backend = "ref"},
                  {.cpu = {}, .isa = Isa::kRef, .compute = Compute::kFloat32}, parallel);
}

TEST(MoePlan, OneRankHoldsAllAndSaysNothingOfRanks) {
  const MoePlan one = *plan({});
  EXPECT_EQ(one.map.local_count(), 10);
  EXPECT_THAT(describe(one), Not(HasSubstr("rank")));
}

TEST(MoePlan, ARankHoldsItsExperts) {
  const MoePlan rank = *plan({.shape = {.dp = 4, .expert_parallel = true, .rank = 1},
                              .transport = Transport::kAlltoallv,
                              .placement = ExpertPlacement::kRoundRobin});
  EXPECT_EQ(rank.map.local_count(), 3);
  EXPECT_EQ(rank.map.global(2), 9);
  EXPECT_EQ(rank.layer_bytes.mapped.count, plan({})->layer_bytes.mapped.count * 3 / 10);
  EXPECT_THAT(describe(rank), HasSubstr("prepare/finalize alltoallv"));
  EXPECT_THAT(describe(rank),
              EndsWith("; rank 1 of 4 (data 4 x tensor 1): 3 of 10 experts, round_robin"));
}

TEST(MoePlan, ARankHoldsItsPartOfEach) {
  const MoePlan rank = *plan(
      {.shape = {.dp = 2, .tp = 2, .rank = 3}, .transport = Transport::kAllgatherReducescatter});
  EXPECT_EQ(rank.map.local_count(), 10);
  EXPECT_EQ(rank.widths.intermediate, Extent(20));
  EXPECT_THAT(describe(rank),
              EndsWith("; rank 3 of 4 (data 2 x tensor 2): rows 60 to 79 of each expert"));
}

TEST(MoePlan, ATransportThatCannotServeIsRefused) {
  EXPECT_FALSE(plan({.shape = {.dp = 2}, .transport = Transport::kLowLatency}).ok());
  EXPECT_FALSE(plan({.shape = {.dp = 2, .expert_parallel = true}}).ok());
}

}  // namespace
}  // namespace rota

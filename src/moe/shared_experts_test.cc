// Shared experts over a tensor-parallel group: where they are cut, what each rank holds. That the
// ranks' sum is what one process computes is shown by sweep_test.cc and ranks_test.cc.
#include <gtest/gtest.h>

#include "moe/plan.h"
#include "moe/testing/synthetic_layer.h"
#include "moe/weights.h"
#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

using testing::SyntheticLayer;

constexpr size_t kFp8WithShared = 13;

MoePlan plan_of(const MoeConfig& config, int tp, int rank) {
  auto plan = plan_moe(config, {}, {.cpu = detect_cpu(), .isa = Isa::kRef},
                       {.shape = {.tp = tp, .expert_parallel = true, .rank = rank}});
  ROTA_CHECK(plan.ok(), plan.status().message());
  return std::move(plan).value();
}

std::vector<int64_t> shares(const MoeConfig& config, int tp) {
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (int rank = 0; rank < tp; ++rank) {
    const ShardRange inside = plan_of(config, tp, rank).widths.shared_inside;
    EXPECT_EQ(inside.begin, begin);
    begin = inside.end;
    sizes.push_back(inside.size());
  }
  EXPECT_EQ(begin, config.shared_intermediate);
  return sizes;
}

TEST(SharedExperts, AreCutInWholeBlocksUnevenlyIfNeedBe) {
  MoeConfig config = SyntheticLayer(testing::kLayerKinds[kFp8WithShared], {72, 44}).config();
  ASSERT_EQ(config.shared_intermediate, 40);
  EXPECT_EQ(shares(config, 1), (std::vector<int64_t>{40}));
  EXPECT_EQ(shares(config, 3), (std::vector<int64_t>{14, 14, 12}));
  config.shared_block = 16;
  EXPECT_EQ(shares(config, 2), (std::vector<int64_t>{32, 8}));
  EXPECT_EQ(shares(config, 4), (std::vector<int64_t>{16, 16, 8, 0}));
}

TEST(SharedExperts, AreHeldOnceByAllRanksTogether) {
  const SyntheticLayer layer(testing::kLayerKinds[kFp8WithShared], {72, 44});
  const auto bytes_of = [&](int tp, int rank) {
    const MoePlan plan = plan_of(layer.config(), tp, rank);
    const auto loaded =
        MoeLayer::load(layer.checkpoint(), layer.names(),
                       {.config = &plan.config, .plan = &plan.widths, .map = plan.map});
    ROTA_CHECK(loaded.ok(), loaded.status().message());
    return loaded->dense().bytes().count;
  };
  EXPECT_EQ(bytes_of(1, 0), 2 * 40 * 72 * 2);  // up and down in BF16
  EXPECT_EQ(bytes_of(3, 0) + bytes_of(3, 1) + bytes_of(3, 2), bytes_of(1, 0));
  EXPECT_LT(bytes_of(3, 2), bytes_of(3, 0));
}

TEST(SharedExperts, MayBeCutWhereTheFormatOfEveryLayerAllows) {
  const auto block_of = [](const std::string& pack) {
    const auto config = read_model_config(testing::golden_path("models/" + pack));
    ROTA_CHECK(config.ok(), config.status().message());
    return moe_config(*config).shared_block;
  };
  EXPECT_EQ(block_of("nemotron-bf16-h336"), 1);
  EXPECT_EQ(block_of("nemotron-fp8-h144"), 1);  // a factor for each matrix
  EXPECT_EQ(block_of("nemotron-nvfp4-h112"), 16);
  EXPECT_EQ(block_of("nemotron-latent-mixed-h112"), 16);  // NVFP4 in some layers, FP8 in others
}

}  // namespace
}  // namespace rota

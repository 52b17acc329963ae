// Experts that move: layer kinds x transports x placements, ranks as threads with every collective
// checked. One rank has twice the mean to do at first.
#include "engine/expert_balancer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/testing/harness.h"
#include "moe/testing/moe_case.h"
#include "moe/testing/rank_layers.h"

namespace rota {
namespace {

using ::testing::Each;
using ::testing::Gt;
using testing::RankLayers;
using testing::RankLayersOptions;
using testing::StepRows;
using testing::SyntheticLayer;

constexpr int kRanks = 4;
constexpr int64_t kRedundant = 2;  // two slots a rank
constexpr int64_t kRows = 8;       // of each rank in a step
constexpr BalancerOptions kBalance = {.window = 4, .interval = 6};

struct Case {
  const char* kind;
  testing::SyntheticShape shape;
  Transport transport;
  ExpertPlacement placement;
};

std::vector<Case> cases() {
  using testing::Values;
  std::vector<Case> all;
  for (const auto& [kind, shape] :
       {std::pair("gpt_oss_mxfp4", testing::SyntheticShape{160, 96, Values::kRandom}),
        std::pair("qwen3_fp8_blocks", testing::SyntheticShape{160, 320, Values::kRandom}),
        std::pair("relu2_nvfp4_latent", testing::SyntheticShape{144, 48, Values::kRandom}),
        std::pair("stacked_apart_bf16", testing::SyntheticShape{72, 44, Values::kRandom})}) {
    for (const Transport transport :
         {Transport::kAllgatherReducescatter, Transport::kAlltoallv, Transport::kLowLatency}) {
      for (const ExpertPlacement placement :
           {ExpertPlacement::kLinear, ExpertPlacement::kRoundRobin}) {
        all.push_back({kind, shape, transport, placement});
      }
    }
  }
  return all;
}

RankLayersOptions options_of(const Case& c) {
  return {.shape = {.dp = kRanks, .expert_parallel = true},
          .transport = c.transport,
          .placement = c.placement,
          .experts_move = true,
          .redundant_experts = kRedundant,
          .kernels = available_kernels(detect_cpu()).back(),
          .compute = Compute::kBf16,
          .moe = {.backend = "auto", .hidden_alignment = 256, .intermediate_alignment = 0},
          .max_tokens = kRows,
          .max_workspace = kMoeWorkspace};
}

class Balanced : public ::testing::TestWithParam<Case> {
 protected:
  Balanced() : layer_(kind(), GetParam().shape) {}

  static const testing::LayerKind& kind() {
    return *std::ranges::find_if(testing::kLayerKinds, [](const testing::LayerKind& it) {
      return std::string_view(it.name) == GetParam().kind;
    });
  }
  int64_t hidden() const { return layer_.config().hidden; }

  // In one process, without padding.
  testing::RankOutput alone(const std::vector<float>& rows) const {
    RankLayersOptions options = options_of(GetParam());
    options.shape = {};
    options.transport = Transport::kNoDpEp;
    options.experts_move = false;
    options.redundant_experts = 0;
    options.moe.hidden_alignment = 0;
    options.max_tokens = std::ssize(rows) / hidden();
    const std::vector<StepRows> steps(1, StepRows{rows});
    return RankLayers(layer_, options).run(steps).front();
  }

  // Rows that experts e and e + 3 serve, for each e of `pairs` in turn.
  std::vector<float> rows_for(const std::vector<int32_t>& pairs, int64_t count) const {
    const std::vector<float> many = testing::random_rows(20 * count, hidden(), 3);
    const std::vector<int32_t> ids = alone(many).ids;
    std::vector<float> rows;
    for (size_t row = 0; std::ssize(rows) < count * hidden(); ++row) {
      const size_t next = rows.size() / static_cast<size_t>(hidden()) % pairs.size();
      if (ids.at(2 * row) % 3 != pairs[next]) continue;
      const auto begin = many.begin() + static_cast<int64_t>(row) * hidden();
      rows.insert(rows.end(), begin, begin + hidden());
    }
    return rows;
  }

  SyntheticLayer layer_;
};
INSTANTIATE_TEST_SUITE_P(Ways, Balanced, ::testing::ValuesIn(cases()), [](const auto& info) {
  return fmt::format("{}_{}_{}", info.param.kind, to_string(info.param.transport),
                     to_string(info.param.placement));
});

TEST_P(Balanced, TwiceTheMeanBecomesEvenAndNoBitChanges) {
  // Linear: experts 2 and 3 lie on rank 1. Round robin: expert 4 on rank 0, expert 1 on two others.
  const bool linear = GetParam().placement == ExpertPlacement::kLinear;
  const std::vector<float> rows =
      rows_for(linear ? std::vector<int32_t>{0, 2} : std::vector<int32_t>{1}, kRows * kRanks);
  const std::vector<float> expected = alone(rows).rows;
  const auto part = static_cast<size_t>(kRows * hidden());
  std::vector<std::vector<double>> imbalance(kRanks);  // after each interval
  std::vector<int64_t> moves(kRanks), served(kRanks);
  std::vector<std::vector<uint64_t>> placement(kRanks);  // after each step
  RankLayers(layer_, options_of(GetParam())).each([&](RankLayers::Rank& rank) {
    const auto r = static_cast<size_t>(rank.index());
    ExpertBalancer balancer({&rank.layer()}, rank.all(), rank.team(), kBalance);
    const std::span<const float> mine = std::span(rows).subspan(r * part, part);
    std::vector<float> out(part);
    for (int64_t step = 0; step < 4 * kBalance.interval; ++step) {
      ASSERT_TRUE(rank.step(std::vector<int64_t>(kRanks, kRows), mine, out).ok());
      ASSERT_EQ(std::memcmp(out.data(), &expected[r * part], part * sizeof(float)), 0)
          << "rank " << r << ", step " << step;
      const int64_t looks = balancer.stats().looks;
      const Status status = balancer.after_step();
      ASSERT_TRUE(status.ok()) << status.message();
      placement[r].push_back(balancer.placement());
      if (balancer.stats().looks > looks) imbalance[r].push_back(balancer.stats().imbalance);
    }
    moves[r] = balancer.stats().moves;
    for (const int64_t tokens : rank.layer().all_served_here()) served[r] += tokens;
  });
  ASSERT_EQ(imbalance[0].size(), 3u);
  EXPECT_NEAR(imbalance[0][0], 2, 0.05);
  EXPECT_LE(imbalance[0][1], 1.2);
  EXPECT_LE(imbalance[0][2], 1.2);
  EXPECT_GT(moves[0], 0);
  EXPECT_NE(placement[0].front(), placement[0].back());
  for (size_t r = 1; r < kRanks; ++r) {
    EXPECT_EQ(imbalance[r], imbalance[0]);
    EXPECT_EQ(moves[r], moves[0]);
    EXPECT_EQ(placement[r], placement[0]);
  }
  EXPECT_EQ(served[0] + served[1] + served[2] + served[3],
            4 * kBalance.interval * kRows * kRanks * SyntheticLayer::kTopK);
  EXPECT_THAT(served, Each(Gt(0)));
}

// One after another, so that every slot is read anew several times.
TEST_P(Balanced, AnyPlacementComputesTheSame) {
  const std::vector<float> rows = testing::random_rows(kRows * kRanks, hidden(), 11);
  const std::vector<float> expected = alone(rows).rows;
  const auto part = static_cast<size_t>(kRows * hidden());
  RankLayers(layer_, options_of(GetParam())).each([&](RankLayers::Rank& rank) {
    const auto r = static_cast<size_t>(rank.index());
    const std::span<const float> mine = std::span(rows).subspan(r * part, part);
    const ExpertMap& map = rank.layer().map();
    std::vector<float> out(part);
    for (int shift = 0; shift < 6; ++shift) {
      std::vector<int32_t> experts;
      for (int32_t slot = 0; slot < map.experts(); ++slot) experts.push_back((slot + shift) % 6);
      const auto slots = ExpertSlots::make(map, SyntheticLayer::kExperts, experts);
      ASSERT_TRUE(slots.ok()) << slots.status().message();
      ASSERT_TRUE(rank.layer().place(*slots, rank.team()).ok());
      ASSERT_TRUE(rank.step(std::vector<int64_t>(kRanks, kRows), mine, out).ok());
      ASSERT_EQ(std::memcmp(out.data(), &expected[r * part], part * sizeof(float)), 0)
          << "rank " << r << ", shift " << shift;
    }
  });
}

}  // namespace
}  // namespace rota

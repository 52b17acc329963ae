#include "moe/expert_map.h"

#include <gtest/gtest.h>

#include <vector>

namespace rota {
namespace {

class ExpertMaps : public ::testing::TestWithParam<ExpertPlacement> {};
INSTANTIATE_TEST_SUITE_P(Placements, ExpertMaps,
                         ::testing::Values(ExpertPlacement::kLinear, ExpertPlacement::kRoundRobin),
                         [](const auto& info) {
                           return info.param == ExpertPlacement::kLinear ? "linear" : "round_robin";
                         });

// Every expert has one owner, local numbers are dense, and the first E mod ranks hold one more:
// also where ranks do not divide experts, and where there are more ranks than experts.
TEST_P(ExpertMaps, EveryExpertIsOnOneRank) {
  for (const int64_t experts : {1, 2, 6, 8, 10, 32, 128}) {
    for (const int ranks : {1, 2, 3, 4, 7, 8, 16}) {
      std::vector<int> owners(static_cast<size_t>(experts), 0);
      int64_t total = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ExpertMap map = *ExpertMap::make(experts, ranks, rank, GetParam());
        EXPECT_EQ(map.local_count(), experts / ranks + (rank < experts % ranks ? 1 : 0));
        total += map.local_count();
        for (int64_t local = 0; local < map.local_count(); ++local) {
          const int64_t global = map.global(local);
          ++owners[static_cast<size_t>(global)];
          EXPECT_EQ(map.owner(global), rank);
          EXPECT_EQ(map.local(global), local);
        }
        for (int64_t expert = 0; expert < experts; ++expert) {
          EXPECT_EQ(map.local(expert).has_value(), map.owner(expert) == rank);
          const ExpertMap there = *ExpertMap::make(experts, ranks, map.owner(expert), GetParam());
          EXPECT_EQ(map.local_at_owner(expert), there.local(expert));
        }
      }
      EXPECT_EQ(total, experts);
      for (const int count : owners) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ExpertMap, PlacementsAreWhatTheirNamesSay) {
  const ExpertMap linear = *ExpertMap::make(10, 4, 1, ExpertPlacement::kLinear);
  EXPECT_EQ(linear.global(0), 3);
  EXPECT_EQ(linear.local_count(), 3);
  const ExpertMap round_robin = *ExpertMap::make(10, 4, 1, ExpertPlacement::kRoundRobin);
  EXPECT_EQ(round_robin.global(2), 9);
}

TEST(ExpertMap, NoExpertIsNothing) {
  const ExpertMap map = ExpertMap::whole(4);
  EXPECT_EQ(map.local(-1), std::nullopt);
  EXPECT_EQ(map.local(4), std::nullopt);
  EXPECT_EQ(map.local(3), 3);
  const ExpertMap none = ExpertMap::none(4);
  EXPECT_EQ(none.local_count(), 0);
  for (int64_t expert = 0; expert < 4; ++expert) EXPECT_EQ(none.local(expert), std::nullopt);
}

TEST(ExpertMap, ImpossibleRanksAreErrors) {
  EXPECT_FALSE(ExpertMap::make(8, 0, 0, ExpertPlacement::kLinear).ok());
  EXPECT_FALSE(ExpertMap::make(8, 2, 2, ExpertPlacement::kLinear).ok());
  EXPECT_FALSE(ExpertMap::make(8, 2, -1, ExpertPlacement::kLinear).ok());
  EXPECT_FALSE(ExpertMap::make(0, 2, 0, ExpertPlacement::kLinear).ok());
}

}  // namespace
}  // namespace rota

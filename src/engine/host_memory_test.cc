#include "engine/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace rota {
namespace {

// Two tensor-parallel groups of two; rank r's experts take 1000 + r, 100 of them copies.
std::vector<RankPlan> four_ranks() {
  std::vector<RankPlan> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    RankPlan plan;
    plan.rank = rank;
    plan.expert_bytes = 1000 + rank;
    plan.copied_bytes = 100;
    plan.attention_bytes = 10 + rank % 2;
    plan.embedding_bytes = 5;
    plan.other_bytes = 2;
    ranks.push_back(plan);
  }
  return ranks;
}

TEST(HostMemory, PagesOfTheFileAreCountedOnceAHost) {
  const std::vector<RankPlan> ranks = four_ranks();
  const std::vector<int> all = {0, 1, 2, 3};
  EXPECT_EQ(mapped_bytes_of_host(ranks, all, 2), 900 + 901 + 902 + 903 + 10 + 11 + 7);
  const std::vector<int> one = {2};
  EXPECT_EQ(mapped_bytes_of_host(ranks, one, 2), 902 + 10 + 7);
  // Of two groups the same place: their attention is the same pages.
  const std::vector<int> same_place = {1, 3};
  EXPECT_EQ(mapped_bytes_of_host(ranks, same_place, 2), 901 + 903 + 11 + 7);
}

TEST(HostMemory, CopiesAreEachRanksOwn) {
  const std::vector<RankPlan> ranks = four_ranks();
  const std::vector<int> two = {0, 3};
  EXPECT_EQ(copied_bytes_of_host(ranks, two), 200);
}

TEST(HostMemory, CoresAreDividedAmongRanksThatAreNotBound) {
  EXPECT_EQ(threads_of_rank(0, 16, 1, true), 0);  // all of them, as the team counts
  EXPECT_EQ(threads_of_rank(0, 16, 3, false), 5);
  EXPECT_EQ(threads_of_rank(0, 2, 8, false), 1);
  EXPECT_EQ(threads_of_rank(0, 4, 8, true), 0);
  EXPECT_EQ(threads_of_rank(7, 16, 4, false), 7);
}

TEST(HostMemory, RanksArePinnedToCoresOfTheirOwnWhereThereAreEnough) {
  HostRanks host{.ranks = {2, 3, 5}, .index = 1, .bound = false};
  const ThreadTeamOptions enough = team_of_rank(0, true, 8, host);
  EXPECT_EQ(enough.threads, 2);
  EXPECT_EQ(enough.first_core, 2);
  EXPECT_FALSE(enough.crowded);
  EXPECT_TRUE(team_of_rank(3, true, 8, host).crowded);
  host.bound = true;
  EXPECT_EQ(team_of_rank(0, true, 8, host).first_core, -1);
  EXPECT_EQ(team_of_rank(0, true, 8, HostRanks{}).first_core, -1);
}

}  // namespace
}  // namespace rota

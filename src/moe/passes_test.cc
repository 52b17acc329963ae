#include "moe/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace rota {
namespace {

using ::testing::ElementsAre;

TEST(Passes, AsManyAsTheRankWithMostTokensNeeds) {
  StepPasses passes({.dp = 3, .expert_parallel = true, .rank = 1}, Transport::kAlltoallv, 4);
  passes.begin_step(std::vector<int64_t>{5, 2, 9});
  ASSERT_EQ(passes.count(), 3);
  EXPECT_THAT(passes.at(0).tokens_of_rank, ElementsAre(4, 2, 4));
  EXPECT_THAT(passes.at(1).tokens_of_rank, ElementsAre(1, 0, 4));
  EXPECT_THAT(passes.at(2).tokens_of_rank, ElementsAre(0, 0, 1));
  EXPECT_EQ(passes.at(0).mine.end, 2);
  EXPECT_EQ(passes.at(2).mine.begin, passes.at(2).mine.end);
  passes.begin_step(std::vector<int64_t>{0, 0, 0});
  EXPECT_EQ(passes.count(), 0);
}

// Every row of every group is sent once, by one rank of it, whatever the numbers.
TEST(Passes, TensorParallelRanksSendAPartEach) {
  for (const int tp : {1, 2, 3, 4}) {
    for (const int64_t tokens : {1, 3, 5}) {
      const std::vector<int64_t> of_group = {11, 0, 2};
      std::vector<std::vector<int>> sent = {std::vector<int>(11), {}, std::vector<int>(2)};
      for (int rank = 0; rank < 3 * tp; ++rank) {
        StepPasses passes({.dp = 3, .tp = tp, .expert_parallel = true, .rank = rank},
                          Transport::kLowLatency, tokens);
        EXPECT_EQ(passes.parts(), tp);
        passes.begin_step(of_group);
        for (int64_t i = 0; i < passes.count(); ++i) {
          const MoePass pass = passes.at(i);
          EXPECT_LE(pass.mine.end - pass.mine.begin, tokens);
          EXPECT_EQ(pass.tokens_of_rank[static_cast<size_t>(rank)],
                    pass.mine.end - pass.mine.begin);
          EXPECT_TRUE(pass.group.begin <= pass.mine.begin && pass.mine.end <= pass.group.end);
          for (int64_t row = pass.mine.begin; row < pass.mine.end; ++row) {
            ++sent[static_cast<size_t>(rank / tp)][static_cast<size_t>(row)];
          }
        }
      }
      for (const auto& rows : sent) EXPECT_THAT(rows, ::testing::Each(1)) << tp << ' ' << tokens;
    }
  }
}

TEST(Passes, WhereTokensStayEveryRankHandlesAll) {
  StepPasses passes({.tp = 4, .rank = 2}, Transport::kNoDpEp, 8);
  passes.begin_step(std::vector<int64_t>{10});
  ASSERT_EQ(passes.count(), 2);
  EXPECT_THAT(passes.at(1).tokens_of_rank, ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(passes.at(1).mine.begin, 8);
}

}  // namespace
}  // namespace rota

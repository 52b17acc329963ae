#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "comm/testing/ranks_in_turn.h"

namespace rota {
namespace {

using ::testing::ElementsAre;

// Two rows of two, each followed by a NaN that no sum may touch.
std::vector<float> rows_of(float a, float b, float c, float d) { return {a, b, NAN, c, d, NAN}; }
MatrixView<float> view(std::vector<float>& rows) { return {rows.data(), 2, Extent(2, 3), 3}; }
std::vector<float> logical(MatrixView<const float> rows) {
  std::vector<float> out;
  for (int64_t r = 0; r < rows.rows(); ++r) {
    out.insert(out.end(), rows.row(r).begin(), rows.row(r).end());
  }
  return out;
}

TEST(Loopback, OneRanksShareIsTheSum) {
  std::vector<float> rows = rows_of(1, 2, 3, 4);
  const auto sum = loopback().reduce(Partial<float>(view(rows)));
  ASSERT_TRUE(sum.ok());
  EXPECT_THAT(logical(sum->rows()), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(sum->rows().data(), rows.data());
}

TEST(Sums, SharesAddToSharesAndSumsToSums) {
  std::vector<float> a = rows_of(1, 2, 3, 4), b = rows_of(10, 20, 30, 40), c = a;
  Partial<float> routed(view(a));
  routed += Partial<float>(view(b));
  Reduced<float> sum = *loopback().reduce(std::move(routed));
  sum += *loopback().reduce(Partial<float>(view(c)));
  EXPECT_THAT(logical(sum.rows()), ElementsAre(12, 24, 36, 48));
  EXPECT_TRUE(std::isnan(a[2]) && std::isnan(a[5]));
}

TEST(RanksInTurn, TheLastRankHasEverySum) {
  testing::RanksInTurn ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.begin(rank);
    const auto share = static_cast<float>(rank + 1);
    std::vector<float> first = rows_of(share, 0, 0, 1), second = rows_of(0, share * 10, 0, 0);
    const auto one = ranks.reduce(Partial<float>(view(first)));
    const auto two = ranks.reduce(Partial<float>(view(second)));
    ASSERT_TRUE(one.ok() && two.ok());
    if (rank < 2) continue;
    EXPECT_THAT(logical(one->rows()), ElementsAre(6, 0, 0, 3));
    EXPECT_THAT(logical(two->rows()), ElementsAre(0, 60, 0, 0));
  }
}

}  // namespace
}  // namespace rota

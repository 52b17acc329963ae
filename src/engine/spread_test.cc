#include "engine/spread.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace rota {
namespace {

std::vector<int32_t> prompt(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(Spread, OneGroupTakesAll) {
  Spread spread(1);
  EXPECT_EQ(spread.place(prompt(100), ""), 0);
  EXPECT_EQ(spread.load(0), 100);
}

TEST(Spread, EqualLoadsTakeTurns) {
  Spread spread(3);
  std::set<int> chosen;
  for (int i = 0; i < 3; ++i) {
    const int group = spread.place(prompt(10, 100 * i), "");
    spread.add(group, -10);  // gone before the next one comes
    chosen.insert(group);
  }
  EXPECT_EQ(chosen.size(), 3u);
}

TEST(Spread, TheLeastLoadedIsChosen) {
  Spread spread(2);
  EXPECT_EQ(spread.place(prompt(1000), ""), 0);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(spread.place(prompt(100, 5000 + 200 * i), ""), 1);
  EXPECT_EQ(spread.load(1), 900);
  spread.add(1, 200);  // its requests grow
  EXPECT_EQ(spread.place(prompt(10, 9000), ""), 0);
  spread.add(0, -1010);
  EXPECT_EQ(spread.place(prompt(10, 9500), ""), 0);
}

TEST(Spread, AKnownPrefixOutweighsAsManyTokensOfLoad) {
  Spread spread(2);
  const std::vector<int32_t> system = prompt(640);
  EXPECT_EQ(spread.place(system, ""), 0);
  std::vector<int32_t> again = system;
  again.insert(again.end(), {1, 2, 3});
  // Computing the 640 anew on group 1 costs as much as what runs on group 0: a tie, and 1 has never
  // been asked.
  EXPECT_EQ(spread.place(again, ""), 1);
  spread.add(1, -643);
  spread.add(0, -640);
  // Now group 1 has computed it last, and both are empty.
  EXPECT_EQ(spread.place(again, ""), 1);
  EXPECT_EQ(spread.load(1), 643);
  EXPECT_EQ(spread.place(again, ""),
            0);  // 643 anew there, against 643 of load and 3 of prompt here
}

TEST(Spread, PrefixesOfAnotherSaltAreNotThere) {
  Spread spread(2);
  EXPECT_EQ(spread.place(prompt(640), "a"), 0);
  spread.add(0, -640 + 1);  // one token of load
  EXPECT_EQ(spread.place(prompt(640), "b"), 1);
  spread.add(1, -640 + 2);
  EXPECT_EQ(spread.place(prompt(640), "a"), 0);
  spread.add(0, -640);
  EXPECT_EQ(spread.place(prompt(640), "b"), 1);
}

TEST(Spread, AnotherBeginningIsAnotherPrefix) {
  Spread spread(2);
  std::vector<int32_t> other = prompt(640);
  EXPECT_EQ(spread.place(other, ""), 0);
  spread.add(0, -639);
  other[0] = 77;
  EXPECT_EQ(spread.place(other, ""), 1);
}

TEST(Spread, TheOldestBlocksAreForgotten) {
  Spread spread(2, 4);
  EXPECT_EQ(spread.place(prompt(128), ""), 0);
  spread.add(0, -127);
  EXPECT_EQ(spread.place(prompt(256, 1000), ""), 1);  // takes the four places
  spread.add(1, -256);
  EXPECT_EQ(spread.place(prompt(128), ""), 1);  // else group 0 with its one token of load
}

TEST(Spread, ABlockSeenAgainIsNotForgottenWithItsOldPlace) {
  Spread spread(2, 4);
  EXPECT_EQ(spread.place(prompt(128), ""), 0);
  spread.add(0, -127);
  EXPECT_EQ(spread.place(prompt(128), ""), 0);  // moves to the two later places
  spread.add(0, -128);
  EXPECT_EQ(spread.place(prompt(128, 1000), ""), 1);  // takes the two old ones
  spread.add(1, -128);
  EXPECT_EQ(spread.place(prompt(128), ""), 0);
}

}  // namespace
}  // namespace rota

#include "engine/step_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "comm/loopback.h"

namespace rota {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What each rank sees after it has said that.
struct Seen {
  Status status;
  std::vector<int64_t> tokens;
  std::vector<int64_t> bytes_from;
  bool work = false;
  bool park = false;
  bool messages = false;
};

std::vector<Seen> exchange(const std::vector<StepHeader>& headers, int tp,
                           const std::vector<int64_t>& first_says) {
  LoopbackRanks ranks(static_cast<int>(headers.size()),
                      {.timeout_seconds = 30, .check_collectives = true});
  std::vector<Seen> seen(headers.size());
  ranks.run([&](Communicator& rank) {
    StepHeaders all(rank, tp);
    const auto r = static_cast<size_t>(rank.rank());
    Seen& it = seen[r];
    it.status =
        all.exchange(headers[r], r == 0 ? std::span(first_says) : std::span<const int64_t>());
    it.tokens.assign(all.tokens_of_group().begin(), all.tokens_of_group().end());
    it.bytes_from.assign(all.bytes_from().begin(), all.bytes_from().end());
    it.work = all.any(StepKind::kWork);
    it.park = all.all(StepKind::kPark);
    it.messages = all.has_messages();
  });
  return seen;
}

TEST(StepHeaders, EveryRankKnowsWhatAllOthersHave) {
  const auto seen =
      exchange({{.step = 4, .kind = StepKind::kDummy, .message_bytes = 2},
                {.step = 4, .kind = StepKind::kWork, .tokens = 7, .message_bytes = 30},
                {.step = 4}},
               1, {2, 0, 11});
  for (const Seen& it : seen) {
    ASSERT_TRUE(it.status.ok()) << it.status.message();
    EXPECT_THAT(it.tokens, ElementsAre(0, 7, 0));
    EXPECT_TRUE(it.work);
    EXPECT_FALSE(it.park);
    EXPECT_TRUE(it.messages);
  }
  EXPECT_THAT(seen[0].bytes_from, ElementsAre(2, 30, 0));
  EXPECT_THAT(seen[1].bytes_from, ElementsAre(0, 0, 0));
  EXPECT_THAT(seen[2].bytes_from, ElementsAre(11, 0, 0));
}

TEST(StepHeaders, AllParkOrNoneDoes) {
  for (const Seen& it : exchange({{}, {}}, 1, {0, 0})) {
    EXPECT_TRUE(it.park);
    EXPECT_FALSE(it.messages);
  }
  for (const Seen& it : exchange({{}, {.kind = StepKind::kDummy}}, 1, {0, 0})) {
    EXPECT_FALSE(it.park);
  }
}

TEST(StepHeaders, ARankAtAnotherStepIsAnErrorOnAllThatNamesBoth) {
  const auto seen = exchange({{.step = 12, .kind = StepKind::kWork, .tokens = 3},
                              {.step = 12},
                              {.step = 13, .kind = StepKind::kDummy}},
                             1, {0, 0, 0});
  for (const Seen& it : seen) {
    EXPECT_EQ(it.status.code(), StatusCode::kInternal);
    EXPECT_THAT(it.status.message(),
                AllOf(HasSubstr("rank 0 says step 12, work, 3 tokens"),
                      HasSubstr("rank 2 says step 13, dummy"), HasSubstr("not at the same step")));
  }
}

TEST(StepHeaders, ARankThatHasLoadedSomethingElseIsAnErrorOnAll) {
  for (const Seen& it : exchange({{.loaded = 0xabc}, {.loaded = 0xabd}}, 1, {0, 0})) {
    EXPECT_THAT(it.status.message(),
                AllOf(HasSubstr("0000000000000abc"), HasSubstr("rank 1"), HasSubstr("abd")));
  }
}

TEST(StepHeaders, ARankWhoseExpertsLieElsewhereIsAnErrorOnAll) {
  for (const Seen& it : exchange({{.placement = 0xabc}, {}, {.placement = 0xabc}}, 1, {0, 0, 0})) {
    EXPECT_EQ(it.status.code(), StatusCode::kInternal);
    EXPECT_THAT(it.status.message(),
                AllOf(HasSubstr("ranks 0 and 1 do not have experts in the same places"),
                      HasSubstr("experts placed 0000000000000abc")));
  }
}

TEST(StepHeaders, RanksOfATensorParallelGroupRunTheSameTokens) {
  const std::vector<StepHeader> good = {{.tokens = 1}, {.tokens = 1}, {.tokens = 5}, {.tokens = 5}};
  for (const Seen& it : exchange(good, 2, {0, 0, 0, 0})) {
    EXPECT_TRUE(it.status.ok());
    EXPECT_THAT(it.tokens, ElementsAre(1, 5));
  }
  const std::vector<StepHeader> bad = {{.tokens = 1}, {.tokens = 1}, {.tokens = 5}, {.tokens = 6}};
  for (const Seen& it : exchange(bad, 2, {0, 0, 0, 0})) {
    EXPECT_THAT(it.status.message(), HasSubstr("ranks 2 and 3 of one group run different tokens"));
  }
}

TEST(StepHeaders, ARankThatDoesNotComeIsNamed) {
  LoopbackRanks ranks(3, {.timeout_seconds = 0.3});
  std::vector<Status> status(3);
  ranks.run([&](Communicator& rank) {
    if (rank.rank() == 1) return;
    StepHeaders all(rank, 1);
    const std::vector<int64_t> none(3);
    status[static_cast<size_t>(rank.rank())] =
        all.exchange({}, rank.rank() == 0 ? std::span(none) : std::span<const int64_t>());
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(status[static_cast<size_t>(rank)].code(), StatusCode::kUnavailable);
    EXPECT_THAT(status[static_cast<size_t>(rank)].message(), HasSubstr("1"));
  }
}

}  // namespace
}  // namespace rota

#include "engine/load_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "comm/loopback.h"
#include "platform/build_id.h"

namespace rota {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LoadAgreement, TextsOfAllRanks) {
  LoopbackRanks ranks(3, {.timeout_seconds = 30, .check_collectives = true});
  ranks.run([&](Communicator& rank) {
    const auto texts = gather_texts(rank, std::string(static_cast<size_t>(rank.rank()), 'x'));
    ASSERT_TRUE(texts.ok()) << texts.status().message();
    EXPECT_THAT(*texts, ElementsAre("", "x", "xx"));
  });
}

TEST(LoadAgreement, OneThatFailsFailsAllWithItsReason) {
  LoopbackRanks ranks(3, {.timeout_seconds = 30});
  ranks.run([&](Communicator& rank) {
    EXPECT_TRUE(agree_ok(rank, {}).ok());
    const Status mine =
        rank.rank() == 1 ? error(StatusCode::kNotFound, "no model \"x\"") : Status();
    const Status all = agree_ok(rank, mine);
    EXPECT_EQ(all.code(), StatusCode::kNotFound);
    EXPECT_EQ(all.message(), rank.rank() == 1 ? "no model \"x\"" : "rank 1: no model \"x\"");
  });
}

// One fails before the others have met, one when they meet: neither waits for somebody who has
// left.
TEST(LoadAgreement, AFailureInTheMiddleOfWorkIsToldOnce) {
  for (const bool early : {true, false}) {
    LoopbackRanks ranks(3, {.timeout_seconds = 30});
    ranks.run([&](Communicator& rank) {
      LoadMeeting meeting(rank);
      const auto work = [&]() -> Status {
        const Status mine = rank.rank() == 1 ? error(StatusCode::kDataLoss, "damaged") : Status();
        if (early) ROTA_RETURN_IF_ERROR(mine);
        return meeting.meet(mine);
      };
      const Status all = meeting.meet(work());
      EXPECT_EQ(all.message(), rank.rank() == 1 ? "damaged" : "rank 1: damaged");
    });
  }
}

TEST(LoadAgreement, ADifferenceNamesBothRanksAndBothValues) {
  LoopbackRanks ranks(3, {.timeout_seconds = 30});
  ranks.run([&](Communicator& rank) {
    std::vector<Agreed> mine = {{"the build", "b"}, {"config.json", "hash 1"}};
    EXPECT_TRUE(agree_same(rank, mine).ok());
    if (rank.rank() == 2) mine[1].value = "hash 2";
    const Status status = agree_same(rank, mine);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("config.json"), HasSubstr("rank 0 (host"), HasSubstr("hash 1"),
                      HasSubstr("rank 2 (host"), HasSubstr("hash 2")));
  });
}

TEST(LoadAgreement, ThreadsAreRanksOfOneHostThatShareItsCpus) {
  LoopbackRanks ranks(3, {.timeout_seconds = 30});
  ranks.run([&](Communicator& rank) {
    const auto host = find_host_ranks(rank);
    ASSERT_TRUE(host.ok());
    EXPECT_THAT(host->ranks, ElementsAre(0, 1, 2));
    EXPECT_EQ(host->index, rank.rank());
    EXPECT_FALSE(host->bound);
    EXPECT_GT(host->available_bytes, 0);
  });
  EXPECT_EQ(find_host_ranks(loopback())->count(), 1);
}

TEST(BuildId, IsThatOfTheProgram) {
  EXPECT_THAT(build_id(), ::testing::MatchesRegex("[0-9a-f]{8,64}"));
}

}  // namespace
}  // namespace rota

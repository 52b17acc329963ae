#include "engine/park.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "comm/loopback.h"
#include "engine/rank_messages.h"
#include "platform/clock.h"

namespace rota {
namespace {

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(Bell, WakesAllOthersAgainAndAgain) {
  LoopbackRanks ranks(4, {.timeout_seconds = 30});
  ranks.run([&](Communicator& rank) {
    Bell bell(rank);
    for (int i = 0; i < 20; ++i) {
      if (rank.rank() == 0 && i % 5 == 0) sleep_seconds(0.01);
      const Status status = rank.rank() == 0 ? bell.ring() : bell.wait(10);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  });
}

TEST(Bell, NobodyIsWokenBeforeItRings) {
  LoopbackRanks ranks(3, {.timeout_seconds = 30});
  ranks.run([&](Communicator& rank) {
    Bell bell(rank);
    const Clock::time_point start = Clock::now();
    if (rank.rank() == 0) sleep_seconds(0.2);
    ASSERT_TRUE((rank.rank() == 0 ? bell.ring() : bell.wait(10)).ok());
    EXPECT_GE(seconds_since(start), 0.19);
  });
}

TEST(Bell, ARankZeroThatNeverRingsIsAnError) {
  LoopbackRanks ranks(2, {.timeout_seconds = 0.2});
  ranks.run([&](Communicator& rank) {
    if (rank.rank() == 0) return;
    Bell bell(rank);
    const Clock::time_point start = Clock::now();
    EXPECT_EQ(bell.wait(0.3).code(), StatusCode::kUnavailable);
    EXPECT_GE(seconds_since(start), 0.3);
    EXPECT_LT(seconds_since(start), 20);
  });
}

// Longer than an operation's timeout.
TEST(WaitForAll, IsPatient) {
  LoopbackRanks ranks(3, {.timeout_seconds = 0.2});
  ranks.run([&](Communicator& rank) {
    if (rank.rank() == 1) sleep_seconds(0.8);
    const Status status = wait_for_all(rank, 60);
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

TEST(RankMessages, GoToWhomTheyAreFor) {
  LoopbackRanks ranks(3, {.timeout_seconds = 30, .check_collectives = true});
  ranks.run([&](Communicator& rank) {
    RankMessages messages(rank);
    for (int round = 0; round < 3; ++round) {
      std::vector<int64_t> from(3);
      if (rank.rank() == 0) {
        messages.add(0, "me");
        messages.add(2, "two");
        messages.add(2, "!");
        from = {2, 5, 0};
      } else {
        if (rank.rank() == 1) messages.add(0, "first");
        from[0] = rank.rank() == 2 ? 4 : 0;
      }
      EXPECT_EQ(messages.empty(), rank.rank() == 2);
      ASSERT_TRUE(messages.exchange(from).ok());
      EXPECT_TRUE(messages.empty());
      EXPECT_EQ(messages.from(0), rank.rank() == 0 ? "me" : (rank.rank() == 2 ? "two!" : ""));
      EXPECT_EQ(messages.from(1), rank.rank() == 0 ? "first" : "");
    }
  });
}

}  // namespace
}  // namespace rota

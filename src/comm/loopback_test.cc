#include "comm/loopback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "comm/testing/transport_cases.h"

namespace rota {
namespace {

using testing::TransportCase;

class Transport : public ::testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Loopback, Transport, ::testing::ValuesIn(testing::transport_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Transport, OneToNineRanks) {
  const std::vector<int> few = {2, 5}, many = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const int ranks : GetParam().spends ? few : many) {  // those wait out a deadline
    SCOPED_TRACE(ranks);
    LoopbackRanks(ranks, GetParam().options).run(GetParam().body);
  }
}

TEST_P(Transport, OneRankAlone) { GetParam().body(loopback()); }

// A rank that comes after the others have given up hears the same, at once.
TEST(LoopbackRanks, TheLateOneIsTold) {
  LoopbackRanks ranks(3, {.timeout_seconds = 0.2});
  std::array<Status, 3> said;
  ranks.run([&](Communicator& rank) {
    if (rank.rank() == 1) testing::transport::sleep_ms(400);
    said[static_cast<size_t>(rank.rank())] = rank.barrier();
  });
  for (const Status& status : said) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("rank 1 of 3 did not come"));
  }
}

// Unchecked too: what does not fit is never copied.
TEST(LoopbackRanks, PiecesThatDoNotFitAreAnErrorForAll) {
  LoopbackRanks ranks(2, {.timeout_seconds = 5});
  std::array<Status, 2> said;
  ranks.run([&](Communicator& rank) {
    testing::transport::Pieces all(rank.rank() == 0 ? std::vector<int64_t>{3, 4}
                                                    : std::vector<int64_t>{3, 5});
    said[static_cast<size_t>(rank.rank())] = rank.all_gather(all.of(rank.rank()), all.received());
  });
  for (const Status& status : said) {
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("bytes to rank"));
  }
}

TEST(LoopbackRanks, OtherOperationsAreAnErrorForAll) {
  LoopbackRanks ranks(2, {.timeout_seconds = 5});
  ranks.run([&](Communicator& rank) {
    const std::byte mine{1};
    std::array<std::byte, 2> all;
    const std::array<int64_t, 3> begin = {0, 1, 2};
    const Status status = rank.rank() == 0
                              ? rank.barrier()
                              : rank.all_gather(std::span(&mine, 1), {all.data(), begin});
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("the ranks do not do the same"));
  });
}

// Computing between start and finish is not waiting, however long.
TEST(LoopbackRanks, ComputingDoesNotCountAsWaiting) {
  LoopbackRanks ranks(2, {.timeout_seconds = 0.2});
  ranks.run([](Communicator& rank) {
    testing::transport::Pieces send({4, 4}), receive({4, 4});
    ASSERT_TRUE(rank.start_exchange(send.sent(), receive.received()).ok());
    testing::transport::sleep_ms(300);
    EXPECT_TRUE(rank.finish_exchange().ok());
  });
}

TEST(Loopback, PiecesOfOneRankMustFit) {
  const std::vector<int64_t> three = {0, 3}, four = {0, 4};
  std::array<std::byte, 4> bytes = {};
  EXPECT_EQ(loopback().start_exchange({bytes.data(), three}, {bytes.data(), four}).code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace rota

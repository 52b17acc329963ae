// The cases of src/comm/testing/transport_cases.h, and what only MPI has to show, on as many ranks
// as mpirun started. All ranks run all tests, in the same order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "comm/testing/transport_cases.h"
#include "mpi_main.h"
#include "pmpi_trace.h"

namespace rota {
namespace {

using testing::MpiCalls;
using testing::TransportCase;

std::unique_ptr<Communicator> world(const CommOptions& options = {.timeout_seconds = 20}) {
  return testing::mpi_world(options);
}

class Transport : public ::testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Mpi, Transport, ::testing::ValuesIn(testing::transport_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Transport, TheRanksOfTheJob) { GetParam().body(*world(GetParam().options)); }

// What low_latency stands on: puts and barriers.
TEST(Windows, MakeNoAllToAll) {
  const auto ranks = world();
  const auto window = ranks->make_window(Bytes{64});
  ASSERT_TRUE(window.ok());
  const MpiCalls before = testing::mpi_calls();
  const std::byte byte{7};
  for (int r = 0; r < ranks->ranks(); ++r) {
    ASSERT_TRUE((*window)->put(r, Bytes{ranks->rank()}, std::span(&byte, 1)).ok());
  }
  ASSERT_TRUE((*window)->finish_epoch().ok());
  const MpiCalls after = testing::mpi_calls();
  EXPECT_EQ(after.all_to_all, before.all_to_all);
  EXPECT_EQ(after.gathers, before.gathers);
  EXPECT_EQ(after.reductions, before.reductions);
  EXPECT_EQ(after.puts, before.puts + ranks->ranks());
  EXPECT_GE(after.barriers, before.barriers + 1);
}

// The trace sees an all-to-all where there is one; and sums are never MPI's.
TEST(Sums, AreAnAllToAllAndNoReductionOfMpis) {
  const auto ranks = world();
  const MpiCalls before = testing::mpi_calls();
  testing::transport::Rows share(ranks->rank(), 2, 3);
  ASSERT_TRUE(ranks->reduce(Partial<float>(share.view())).ok());
  const MpiCalls after = testing::mpi_calls();
  EXPECT_EQ(after.all_to_all, before.all_to_all + (ranks->ranks() > 1));
  EXPECT_EQ(after.gathers, before.gathers + (ranks->ranks() > 1));
  EXPECT_EQ(after.reductions, 0);
}

TEST(Exchange, OfMoreThanMpiCountsIsRefused) {
  const auto ranks = world();
  std::vector<int64_t> begin(static_cast<size_t>(ranks->ranks()) + 1);
  begin.back() = int64_t{1} << 31;  // nothing is there; nothing may be read
  const Status status = ranks->start_exchange({nullptr, begin}, {nullptr, begin});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("2147483648 bytes"));
  EXPECT_TRUE(ranks->barrier().ok());
}

// Unchecked too: what is longer than its place is an error, not written past its end.
TEST(Exchange, PiecesThatDoNotFitStayOutside) {
  const auto ranks = world({.timeout_seconds = 1});
  const int last = ranks->ranks() - 1;
  if (last == 0) return;
  std::vector<int64_t> lengths(static_cast<size_t>(ranks->ranks()), 4);
  testing::transport::Pieces receive(lengths);
  if (ranks->rank() == 0) lengths.back() = 5;  // the last expects 4, at the end of its buffer
  testing::transport::Pieces send(lengths);
  Status status = ranks->start_exchange(send.sent(), receive.received());
  if (status.ok()) status = ranks->finish_exchange();
  if (ranks->rank() == last) {
    EXPECT_THAT(status.message(), ::testing::HasSubstr("MPI_ERR_TRUNCATE"));
    EXPECT_EQ(receive.data.back(), std::byte{0xee});
  }
}

// A rank that waits for the others leaves its core alone.
TEST(Waiting, TakesLittleOfACore) {
  const auto ranks = world();
  if (ranks->ranks() == 1) return;
  ASSERT_TRUE(ranks->barrier().ok());
  const auto cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  if (ranks->rank() == 0) testing::transport::sleep_ms(1000);
  const double before = cpu_seconds();
  ASSERT_TRUE(ranks->barrier().ok());
  EXPECT_LT(cpu_seconds() - before, 0.1);  // of a second; found: 0.01
}

// Fails on purpose, for failed_test_ends.sh.
TEST(Failure, DISABLED_OfOneRankEndsTheJob) {
  const auto ranks = world({.timeout_seconds = 600});
  ASSERT_NE(ranks->rank(), 1);
  EXPECT_TRUE(ranks->barrier().ok());
}

}  // namespace
}  // namespace rota

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return rota::testing::run_tests_on_ranks();
}

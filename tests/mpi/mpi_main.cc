#include "mpi_main.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "comm/mpi.h"

namespace rota::testing {
namespace {

MpiRanks* mpi = nullptr;

constexpr std::chrono::seconds kForOthersToReport(1);

// Says failures of the other ranks; and ends the job after a test that has failed, as this rank is
// no longer where the others believe it to be, and they would wait for it in the next test.
class Failures : public ::testing::EmptyTestEventListener {
 public:
  explicit Failures(int rank) : rank_(rank) {}

 private:
  void OnTestStart(const ::testing::TestInfo& test) override { test_ = test.name(); }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.result()->Passed() || test.result()->Skipped()) return;
    std::fflush(nullptr);
    std::this_thread::sleep_for(kForOthersToReport);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed() || rank_ == 0) return;  // rank 0 has googletest's own printer
    std::fprintf(stderr, "rank %d, %s, line %d: %s\n", rank_, test_.c_str(), result.line_number(),
                 result.summary());
  }
  int rank_;
  std::string test_;  // not asked for when a result is told: googletest holds its lock then
};

}  // namespace

std::unique_ptr<Communicator> mpi_world(const CommOptions& options) {
  auto ranks = mpi->world(options);
  ROTA_CHECK(ranks.ok(), ranks.status().message());
  return std::move(ranks).value();
}

int run_tests_on_ranks() {
  auto started = MpiRanks::start();
  ROTA_CHECK(started.ok(), started.status().message());
  mpi = started->get();
  const int rank = mpi_world()->rank();
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Failures(rank));
  const int result = RUN_ALL_TESTS();
  // A test may have spent its communicator, and then MpiRanks would not finalize. Here all ranks
  // come.
  MPI_Finalize();
  return result;
}

}  // namespace rota::testing

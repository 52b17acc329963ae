#include "mpi_main.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <utility>

#include "comm/mpi.h"

namespace rota::testing {
namespace {

MpiRanks* mpi = nullptr;

// Says failures of the other ranks, nothing else.
class Failures : public ::testing::EmptyTestEventListener {
 public:
  explicit Failures(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "rank %d, %s, line %d: %s\n", rank_, test ? test->name() : "",
                 result.line_number(), result.summary());
  }
  int rank_;
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
  if (const int rank = mpi_world()->rank(); rank != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures(rank));
  }
  const int result = RUN_ALL_TESTS();
  // A test may have spent its communicator, and then MpiRanks would not finalize. Here all ranks come.
  MPI_Finalize();
  return result;
}

}  // namespace rota::testing

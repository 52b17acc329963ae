// What programs of tests that mpirun starts have in common: MPI, and who says what. All ranks run
// all tests, in the same order; rank 0 reports, the others tell their failures alone.
//
//   int main(int argc, char** argv) {
//     ::testing::InitGoogleTest(&argc, argv);
//     return rota::testing::run_tests_on_ranks();
//   }
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace rota::testing {

// A communicator of all ranks. Collective.
std::unique_ptr<Communicator> mpi_world(const CommOptions& options = {.timeout_seconds = 20});

int run_tests_on_ranks();

}  // namespace rota::testing

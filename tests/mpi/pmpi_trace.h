// Counts what a program asks of MPI, between its code and the library (the PMPI profiling
// interface). What MPI does inside, such as the messages of a collective, is not counted.
//
//   const MpiCalls before = mpi_calls();
//   ...
//   EXPECT_EQ(mpi_calls().all_to_all - before.all_to_all, 0);
#pragma once

#include <cstdint>

namespace rota::testing {

struct MpiCalls {
  int64_t all_to_all = 0;  // of any form
  int64_t gathers = 0;     // all-gathers of any form
  int64_t reductions = 0;  // of any form
  int64_t barriers = 0;
  int64_t puts = 0;
};
MpiCalls mpi_calls();  // since the start

}  // namespace rota::testing

// Ranks that are processes of one MPI job (OpenMPI 4.1).
//
//   ROTA_ASSIGN_OR_RETURN(std::unique_ptr<MpiRanks> mpi, MpiRanks::start());
//   ROTA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ranks, mpi->world({.timeout_seconds = 60}));
// Start is called once in a process; communicators and windows are destroyed before MpiRanks.
//
// What it uses: Iallgatherv, Ialltoallv and Ibarrier, moved on by polling (this MPI has no progress
// thread), and windows. No reduction of MPI's: sums are the Communicator's own, in rank order. A
// wait yields, then sleeps up to 1 ms between polls: ranks may be more than cores, and one that
// waits long takes under 2 % of a core.
//
// A deadline: a rank that waits for half of it tells the others where it is, and so those that say
// nothing can be named. A communicator that failed may have MPI requests on their way for ever: its
// buffers must stay, and the process must end without MPI_Finalize, which waits for all. ~MpiRanks
// does so.
//
// Windows: on one host MPI gives shared memory (osc/sm): a put is a copy, and a target need do
// nothing. Over hosts (osc/pt2pt) puts arrive while their target is in an MPI call, and MPI's flush
// has no deadline; so finish_epoch() first meets all ranks, with one. osc/rdma refuses to make a
// window over vader and tcp alone, osc/ucx fails where UCX has no network: mpi_launch.h leaves that
// out.
//
// Limits: a buffer for all ranks, and a put, end at 2^31 - 1 bytes, as MPI's int does; more is
// kUnsupported. In containers that forbid ranks to read each other's memory, vader warns unless
// btl_vader_single_copy_mechanism is none; it then copies through shared memory.
#pragma once

#include <memory>

#include "base/status.h"
#include "comm/communicator.h"

namespace rota {

class MpiRanks {
 public:
  static Result<std::unique_ptr<MpiRanks>> start();
  ~MpiRanks();
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  // All ranks of the job. Collective; each call gives one that shares nothing with the others.
  Result<std::unique_ptr<Communicator>> world(const CommOptions& options = {});

 private:
  MpiRanks() = default;
};

}  // namespace rota

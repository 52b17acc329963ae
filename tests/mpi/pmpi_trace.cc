#include "pmpi_trace.h"

#include <mpi.h>

namespace rota::testing {
namespace {

MpiCalls calls;

}  // namespace

MpiCalls mpi_calls() { return calls; }

}  // namespace rota::testing

using rota::testing::calls;

// MPI's function, counted, and then its own.
#define ROTA_COUNTED(counter, name, parameters, arguments) \
  int name parameters {                                    \
    ++calls.counter;                                       \
    return P##name arguments;                              \
  }

extern "C" {

ROTA_COUNTED(all_to_all, MPI_Alltoall,
             (const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt, MPI_Comm c),
             (s, sc, st, r, rc, rt, c))
ROTA_COUNTED(all_to_all, MPI_Ialltoall,
             (const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt, MPI_Comm c,
              MPI_Request* q),
             (s, sc, st, r, rc, rt, c, q))
ROTA_COUNTED(all_to_all, MPI_Neighbor_alltoall,
             (const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt, MPI_Comm c),
             (s, sc, st, r, rc, rt, c))
ROTA_COUNTED(all_to_all, MPI_Ineighbor_alltoall,
             (const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt, MPI_Comm c,
              MPI_Request* q),
             (s, sc, st, r, rc, rt, c, q))
ROTA_COUNTED(all_to_all, MPI_Alltoallv,
             (const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r, const int* rc,
              const int* rd, MPI_Datatype rt, MPI_Comm c),
             (s, sc, sd, st, r, rc, rd, rt, c))
ROTA_COUNTED(all_to_all, MPI_Ialltoallv,
             (const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r, const int* rc,
              const int* rd, MPI_Datatype rt, MPI_Comm c, MPI_Request* q),
             (s, sc, sd, st, r, rc, rd, rt, c, q))
ROTA_COUNTED(all_to_all, MPI_Neighbor_alltoallv,
             (const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r, const int* rc,
              const int* rd, MPI_Datatype rt, MPI_Comm c),
             (s, sc, sd, st, r, rc, rd, rt, c))
ROTA_COUNTED(all_to_all, MPI_Ineighbor_alltoallv,
             (const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r, const int* rc,
              const int* rd, MPI_Datatype rt, MPI_Comm c, MPI_Request* q),
             (s, sc, sd, st, r, rc, rd, rt, c, q))
ROTA_COUNTED(all_to_all, MPI_Alltoallw,
             (const void* s, const int* sc, const int* sd, const MPI_Datatype* st, void* r,
              const int* rc, const int* rd, const MPI_Datatype* rt, MPI_Comm c),
             (s, sc, sd, st, r, rc, rd, rt, c))
ROTA_COUNTED(all_to_all, MPI_Ialltoallw,
             (const void* s, const int* sc, const int* sd, const MPI_Datatype* st, void* r,
              const int* rc, const int* rd, const MPI_Datatype* rt, MPI_Comm c, MPI_Request* q),
             (s, sc, sd, st, r, rc, rd, rt, c, q))
ROTA_COUNTED(all_to_all, MPI_Neighbor_alltoallw,
             (const void* s, const int* sc, const MPI_Aint* sd, const MPI_Datatype* st, void* r,
              const int* rc, const MPI_Aint* rd, const MPI_Datatype* rt, MPI_Comm c),
             (s, sc, sd, st, r, rc, rd, rt, c))
ROTA_COUNTED(all_to_all, MPI_Ineighbor_alltoallw,
             (const void* s, const int* sc, const MPI_Aint* sd, const MPI_Datatype* st, void* r,
              const int* rc, const MPI_Aint* rd, const MPI_Datatype* rt, MPI_Comm c,
              MPI_Request* q),
             (s, sc, sd, st, r, rc, rd, rt, c, q))
ROTA_COUNTED(gathers, MPI_Allgather,
             (const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt, MPI_Comm c),
             (s, sc, st, r, rc, rt, c))
ROTA_COUNTED(gathers, MPI_Iallgather,
             (const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt, MPI_Comm c,
              MPI_Request* q),
             (s, sc, st, r, rc, rt, c, q))
ROTA_COUNTED(gathers, MPI_Allgatherv,
             (const void* s, int sc, MPI_Datatype st, void* r, const int* rc, const int* rd,
              MPI_Datatype rt, MPI_Comm c),
             (s, sc, st, r, rc, rd, rt, c))
ROTA_COUNTED(gathers, MPI_Iallgatherv,
             (const void* s, int sc, MPI_Datatype st, void* r, const int* rc, const int* rd,
              MPI_Datatype rt, MPI_Comm c, MPI_Request* q),
             (s, sc, st, r, rc, rd, rt, c, q))
ROTA_COUNTED(reductions, MPI_Allreduce,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
             (s, r, n, t, o, c))
ROTA_COUNTED(reductions, MPI_Iallreduce,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request* q),
             (s, r, n, t, o, c, q))
ROTA_COUNTED(reductions, MPI_Scan,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
             (s, r, n, t, o, c))
ROTA_COUNTED(reductions, MPI_Iscan,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request* q),
             (s, r, n, t, o, c, q))
ROTA_COUNTED(reductions, MPI_Exscan,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
             (s, r, n, t, o, c))
ROTA_COUNTED(reductions, MPI_Iexscan,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request* q),
             (s, r, n, t, o, c, q))
ROTA_COUNTED(reductions, MPI_Reduce_scatter_block,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
             (s, r, n, t, o, c))
ROTA_COUNTED(reductions, MPI_Ireduce_scatter_block,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request* q),
             (s, r, n, t, o, c, q))
ROTA_COUNTED(reductions, MPI_Reduce,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c),
             (s, r, n, t, o, root, c))
ROTA_COUNTED(reductions, MPI_Ireduce,
             (const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c,
              MPI_Request* q),
             (s, r, n, t, o, root, c, q))
ROTA_COUNTED(reductions, MPI_Reduce_scatter,
             (const void* s, void* r, const int* n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
             (s, r, n, t, o, c))
ROTA_COUNTED(reductions, MPI_Ireduce_scatter,
             (const void* s, void* r, const int* n, MPI_Datatype t, MPI_Op o, MPI_Comm c,
              MPI_Request* q),
             (s, r, n, t, o, c, q))
ROTA_COUNTED(barriers, MPI_Barrier, (MPI_Comm c), (c))
ROTA_COUNTED(barriers, MPI_Ibarrier, (MPI_Comm c, MPI_Request* q), (c, q))
ROTA_COUNTED(puts, MPI_Put,
             (const void* s, int sc, MPI_Datatype st, int rank, MPI_Aint at, int rc,
              MPI_Datatype rt, MPI_Win w),
             (s, sc, st, rank, at, rc, rt, w))
ROTA_COUNTED(puts, MPI_Rput,
             (const void* s, int sc, MPI_Datatype st, int rank, MPI_Aint at, int rc,
              MPI_Datatype rt, MPI_Win w, MPI_Request* q),
             (s, sc, st, rank, at, rc, rt, w, q))

}  // extern "C"

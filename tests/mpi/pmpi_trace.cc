#include "pmpi_trace.h"

#include <mpi.h>

namespace rota::testing {
namespace {

MpiCalls calls;

}  // namespace

MpiCalls mpi_calls() { return calls; }

}  // namespace rota::testing

using rota::testing::calls;

extern "C" {

int MPI_Alltoall(const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt,
                 MPI_Comm c) {
  ++calls.all_to_all;
  return PMPI_Alltoall(s, sc, st, r, rc, rt, c);
}
int MPI_Ialltoall(const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt,
                  MPI_Comm c, MPI_Request* q) {
  ++calls.all_to_all;
  return PMPI_Ialltoall(s, sc, st, r, rc, rt, c, q);
}
int MPI_Neighbor_alltoall(const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt,
                          MPI_Comm c) {
  ++calls.all_to_all;
  return PMPI_Neighbor_alltoall(s, sc, st, r, rc, rt, c);
}
int MPI_Ineighbor_alltoall(const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt,
                           MPI_Comm c, MPI_Request* q) {
  ++calls.all_to_all;
  return PMPI_Ineighbor_alltoall(s, sc, st, r, rc, rt, c, q);
}
int MPI_Alltoallv(const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r,
                  const int* rc, const int* rd, MPI_Datatype rt, MPI_Comm c) {
  ++calls.all_to_all;
  return PMPI_Alltoallv(s, sc, sd, st, r, rc, rd, rt, c);
}
int MPI_Ialltoallv(const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r,
                   const int* rc, const int* rd, MPI_Datatype rt, MPI_Comm c, MPI_Request* q) {
  ++calls.all_to_all;
  return PMPI_Ialltoallv(s, sc, sd, st, r, rc, rd, rt, c, q);
}
int MPI_Neighbor_alltoallv(const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r,
                           const int* rc, const int* rd, MPI_Datatype rt, MPI_Comm c) {
  ++calls.all_to_all;
  return PMPI_Neighbor_alltoallv(s, sc, sd, st, r, rc, rd, rt, c);
}
int MPI_Ineighbor_alltoallv(const void* s, const int* sc, const int* sd, MPI_Datatype st, void* r,
                            const int* rc, const int* rd, MPI_Datatype rt, MPI_Comm c,
                            MPI_Request* q) {
  ++calls.all_to_all;
  return PMPI_Ineighbor_alltoallv(s, sc, sd, st, r, rc, rd, rt, c, q);
}
int MPI_Alltoallw(const void* s, const int* sc, const int* sd, const MPI_Datatype* st, void* r,
                  const int* rc, const int* rd, const MPI_Datatype* rt, MPI_Comm c) {
  ++calls.all_to_all;
  return PMPI_Alltoallw(s, sc, sd, st, r, rc, rd, rt, c);
}
int MPI_Ialltoallw(const void* s, const int* sc, const int* sd, const MPI_Datatype* st, void* r,
                   const int* rc, const int* rd, const MPI_Datatype* rt, MPI_Comm c,
                   MPI_Request* q) {
  ++calls.all_to_all;
  return PMPI_Ialltoallw(s, sc, sd, st, r, rc, rd, rt, c, q);
}
int MPI_Neighbor_alltoallw(const void* s, const int* sc, const MPI_Aint* sd, const MPI_Datatype* st,
                           void* r, const int* rc, const MPI_Aint* rd, const MPI_Datatype* rt,
                           MPI_Comm c) {
  ++calls.all_to_all;
  return PMPI_Neighbor_alltoallw(s, sc, sd, st, r, rc, rd, rt, c);
}
int MPI_Ineighbor_alltoallw(const void* s, const int* sc, const MPI_Aint* sd,
                            const MPI_Datatype* st, void* r, const int* rc, const MPI_Aint* rd,
                            const MPI_Datatype* rt, MPI_Comm c, MPI_Request* q) {
  ++calls.all_to_all;
  return PMPI_Ineighbor_alltoallw(s, sc, sd, st, r, rc, rd, rt, c, q);
}
int MPI_Allgather(const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt,
                  MPI_Comm c) {
  ++calls.gathers;
  return PMPI_Allgather(s, sc, st, r, rc, rt, c);
}
int MPI_Iallgather(const void* s, int sc, MPI_Datatype st, void* r, int rc, MPI_Datatype rt,
                   MPI_Comm c, MPI_Request* q) {
  ++calls.gathers;
  return PMPI_Iallgather(s, sc, st, r, rc, rt, c, q);
}
int MPI_Allgatherv(const void* s, int sc, MPI_Datatype st, void* r, const int* rc, const int* rd,
                   MPI_Datatype rt, MPI_Comm c) {
  ++calls.gathers;
  return PMPI_Allgatherv(s, sc, st, r, rc, rd, rt, c);
}
int MPI_Iallgatherv(const void* s, int sc, MPI_Datatype st, void* r, const int* rc, const int* rd,
                    MPI_Datatype rt, MPI_Comm c, MPI_Request* q) {
  ++calls.gathers;
  return PMPI_Iallgatherv(s, sc, st, r, rc, rd, rt, c, q);
}
int MPI_Allreduce(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c) {
  ++calls.reductions;
  return PMPI_Allreduce(s, r, n, t, o, c);
}
int MPI_Iallreduce(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c,
                   MPI_Request* q) {
  ++calls.reductions;
  return PMPI_Iallreduce(s, r, n, t, o, c, q);
}
int MPI_Scan(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c) {
  ++calls.reductions;
  return PMPI_Scan(s, r, n, t, o, c);
}
int MPI_Iscan(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request* q) {
  ++calls.reductions;
  return PMPI_Iscan(s, r, n, t, o, c, q);
}
int MPI_Exscan(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c) {
  ++calls.reductions;
  return PMPI_Exscan(s, r, n, t, o, c);
}
int MPI_Iexscan(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c,
                MPI_Request* q) {
  ++calls.reductions;
  return PMPI_Iexscan(s, r, n, t, o, c, q);
}
int MPI_Reduce_scatter_block(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c) {
  ++calls.reductions;
  return PMPI_Reduce_scatter_block(s, r, n, t, o, c);
}
int MPI_Ireduce_scatter_block(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c,
                              MPI_Request* q) {
  ++calls.reductions;
  return PMPI_Ireduce_scatter_block(s, r, n, t, o, c, q);
}
int MPI_Reduce(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c) {
  ++calls.reductions;
  return PMPI_Reduce(s, r, n, t, o, root, c);
}
int MPI_Ireduce(const void* s, void* r, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c,
                MPI_Request* q) {
  ++calls.reductions;
  return PMPI_Ireduce(s, r, n, t, o, root, c, q);
}
int MPI_Reduce_scatter(const void* s, void* r, const int* n, MPI_Datatype t, MPI_Op o, MPI_Comm c) {
  ++calls.reductions;
  return PMPI_Reduce_scatter(s, r, n, t, o, c);
}
int MPI_Ireduce_scatter(const void* s, void* r, const int* n, MPI_Datatype t, MPI_Op o, MPI_Comm c,
                        MPI_Request* q) {
  ++calls.reductions;
  return PMPI_Ireduce_scatter(s, r, n, t, o, c, q);
}
int MPI_Barrier(MPI_Comm c) {
  ++calls.barriers;
  return PMPI_Barrier(c);
}
int MPI_Ibarrier(MPI_Comm c, MPI_Request* q) {
  ++calls.barriers;
  return PMPI_Ibarrier(c, q);
}
int MPI_Put(const void* s, int sc, MPI_Datatype st, int rank, MPI_Aint at, int rc, MPI_Datatype rt,
            MPI_Win w) {
  ++calls.puts;
  return PMPI_Put(s, sc, st, rank, at, rc, rt, w);
}
int MPI_Rput(const void* s, int sc, MPI_Datatype st, int rank, MPI_Aint at, int rc, MPI_Datatype rt,
             MPI_Win w, MPI_Request* q) {
  ++calls.puts;
  return PMPI_Rput(s, sc, st, rank, at, rc, rt, w, q);
}

}  // extern "C"

// One rank of an engine of several processes: what mpirun starts for `rota serve`.
//
//   return run_engine_rank("/run/.../front");   // `rota engine-rank --front PATH`
//
// All ranks meet over MPI. Rank 0 connects to the front's Unix socket and serves it
// (engine_server.h); what the front starts it with it gives to the others, which run serve_rank()
// until rank 0 stops. A rank that is lost or falls out of step ends all others with
// kEngineRankLostExitCode. A rank is killed when the process that started it, mpirun or its daemon,
// has ended.
#pragma once

#include <string>

namespace rota {

// Beside the front's socket; each rank on the front's host holds a shared lock of it while it
// lives.
inline constexpr const char* kRanksAliveFile = "ranks-alive";

// The process's exit code.
int run_engine_rank(const std::string& front);

}  // namespace rota

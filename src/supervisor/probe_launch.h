// Starts the ranks of `rota doctor` with mpirun, as `rota serve` would, and reads what they say.
//
//   const ProbeAnswer answer = launch_probe({.options = options, .ranks = 4, .seconds = 60});
//
// Contract: returns within `seconds`, and a moment; no process and no file outlives the call.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_options.h"
#include "engine/probe.h"

namespace rota {

struct ProbeLaunch {
  EngineOptions options;
  int ranks = 1;
  std::string hostfile = {};
  double seconds = 60;  // from the start of mpirun to the ranks' report
};

struct RankHere {
  std::string host;
  std::string build;
  bool met = false;  // the others, in MPI's start
};

struct ProbeAnswer {
  std::optional<ProbeReport> report;
  std::map<int, RankHere> here;  // ranks that were started
  std::string fault;             // why there is no report
  std::string said;              // what mpirun and MPI have said beside
  double seconds = 0;
};

ProbeAnswer launch_probe(const ProbeLaunch& launch);

// A host alone: whether mpirun reaches it and finds this program there.
ProbeAnswer greet_host(const std::string& host, double seconds);

// What `mpirun --version` says; empty: nothing.
std::string mpirun_version(const std::string& mpirun);

}  // namespace rota

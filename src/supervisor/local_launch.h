// What mpi_launch.h wants to know of this process and this host: where mpirun is, cores, rights,
// variables.
//
//   ROTA_ASSIGN_OR_RETURN(MpiLaunch launch, local_launch({.ranks = 4, .run_folder = folder.path(), ...}));
//
// Contract: a hostfile is read first, and its faults are told before anything is started
// (hostfile.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "supervisor/mpi_launch.h"

namespace rota {

struct LocalLaunch {
  int ranks = 1;
  std::string executable = "/proc/self/exe";
  std::vector<std::string> arguments;
  std::filesystem::path run_folder;
  std::string hostfile = {};
};

Result<MpiLaunch> local_launch(const LocalLaunch& wanted);

// The first mpirun in PATH. kNotFound: what to install.
Result<std::string> find_mpirun();

}  // namespace rota

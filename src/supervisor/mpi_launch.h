// How an engine of several ranks is started: mpirun's words and variables. Pure.
//
//   MpiCommand mpi = mpi_command({.ranks = 4, .command = {"/usr/bin/rota", "engine-rank", ...}, ...});
//
// OpenMPI 4.1. All files of MPI lie in the run folder. Ranks are not bound by mpirun: each takes
// its own cores of its host (load_engine.h). Where ranks are more than cores they yield while they
// wait. What the user has set as OMPI_MCA_... stays, but for the folders.
#pragma once

#include <string>
#include <vector>

namespace rota {

struct MpiLaunch {
  int ranks = 1;
  std::string mpirun = "mpirun";
  std::vector<std::string> command;  // the executable and its arguments, for each rank
  std::string run_folder;            // of this life of the engine
  std::string hostfile = {};         // MPI's own format; empty: this host, or an outer allocation's
  int cores = 1;                     // of this host, that may be used
  bool root = false;                 // this process is root
  bool reads_memory = true;  // processes may read each other's memory (containers: often not)
  std::vector<std::string> environment;  // NAME=VALUE, of this process
};

struct MpiCommand {
  std::vector<std::string> command;
  std::vector<std::string> environment;
};

MpiCommand mpi_command(const MpiLaunch& launch);

}  // namespace rota

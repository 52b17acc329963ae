#include "supervisor/local_launch.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "platform/topology.h"
#include "supervisor/hostfile.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

// Whether the system lets processes read each other's memory: a container often does not.
bool reads_memory() {
  char from = 1;
  char to = 0;
  iovec local = {&to, 1};
  iovec remote = {&from, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

std::vector<std::string> this_environment() {
  std::vector<std::string> all;
  for (char** it = environ; *it != nullptr; ++it) all.emplace_back(*it);
  return all;
}

// mpirun would start another /proc/self/exe.
std::string real_executable(const std::string& executable) {
  std::error_code fault;
  const fs::path real = fs::canonical(executable, fault);
  return fault ? executable : real.string();
}

}  // namespace

Result<std::string> find_mpirun() {
  const char* path = std::getenv("PATH");
  std::stringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/mpirun";
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return error(
      StatusCode::kNotFound,
      "several ranks are started by mpirun, and there is none in PATH; install OpenMPI 4.1 "
      "(Debian: openmpi-bin)");
}

Result<MpiLaunch> local_launch(const LocalLaunch& wanted) {
  if (!wanted.hostfile.empty()) {
    ROTA_ASSIGN_OR_RETURN(const std::vector<HostSlots> hosts, read_hostfile(wanted.hostfile));
    ROTA_RETURN_IF_ERROR(check_slots(wanted.hostfile, hosts, wanted.ranks));
  }
  MpiLaunch launch;
  ROTA_ASSIGN_OR_RETURN(launch.mpirun, find_mpirun());
  launch.ranks = wanted.ranks;
  launch.command = {real_executable(wanted.executable)};
  launch.command.insert(launch.command.end(), wanted.arguments.begin(), wanted.arguments.end());
  launch.run_folder = wanted.run_folder.string();
  launch.hostfile = wanted.hostfile;
  launch.cores = static_cast<int>(usable_cpus().one_per_core.size());
  launch.root = ::geteuid() == 0;
  launch.reads_memory = reads_memory();
  launch.environment = this_environment();
  return launch;
}

}  // namespace rota

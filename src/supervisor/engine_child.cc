#include "supervisor/engine_child.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>
#include <vector>

#include "base/log.h"
#include "platform/clock.h"
#include "platform/topology.h"
#include "supervisor/mpi_launch.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

constexpr double kConnectSeconds = 180;   // many ranks on few cores, on hosts that are asked first
constexpr double kRanksGraceSeconds = 5;  // MPI's own end
constexpr int kPollMilliseconds = 20;

// A socket in the run folder on which rank 0 is awaited.
class Listener {
 public:
  static Result<Listener> make(const fs::path& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = path.string();
    if (text.size() >= sizeof address.sun_path) {
      return invalid_argument("{}: longer than {} bytes; set XDG_RUNTIME_DIR to a shorter path",
                              text, sizeof address.sun_path - 1);
    }
    std::memcpy(address.sun_path, text.data(), text.size());
    Listener listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (listener.fd_ < 0 ||
        ::bind(listener.fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener.fd_, 1) != 0) {
      return error(StatusCode::kIo, "{}: {}", text, std::strerror(errno));
    }
    return listener;
  }
  Listener(Listener&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Listener& operator=(Listener&&) = delete;
  ~Listener() {
    if (fd_ >= 0) ::close(fd_);
  }

  // A connection, non-blocking; -1: none yet, after a moment.
  int poll_connection() const {
    pollfd waiting = {fd_, POLLIN, 0};
    ::poll(&waiting, 1, kPollMilliseconds);
    return ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  }

 private:
  explicit Listener(int fd) : fd_(fd) {}
  int fd_;
};

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

Result<MpiLaunch> describe_launch(const EngineProcessOptions& options, const fs::path& folder,
                                  const fs::path& socket) {
  const ParallelOptions& parallel = options.engine.parallel;
  MpiLaunch launch;
  ROTA_ASSIGN_OR_RETURN(launch.mpirun, find_mpirun());
  launch.ranks = parallel.tensor_parallel_size * parallel.data_parallel_size;
  launch.command = {real_executable(options.executable)};
  launch.command.insert(launch.command.end(), options.rank_arguments.begin(),
                        options.rank_arguments.end());
  launch.command.insert(launch.command.end(), {"--front", socket.string()});
  launch.run_folder = folder.string();
  launch.hostfile = options.hostfile;
  launch.cores = static_cast<int>(usable_cpus().one_per_core.size());
  launch.root = ::geteuid() == 0;
  launch.reads_memory = reads_memory();
  launch.environment = this_environment();
  return launch;
}

}  // namespace

Result<EngineChild> EngineChild::start(const EngineProcessOptions& options,
                                       const std::function<bool()>& stopping) {
  const ParallelOptions& parallel = options.engine.parallel;
  if (parallel.tensor_parallel_size * parallel.data_parallel_size > 1) {
    return start_ranks(options, stopping);
  }
  std::vector<std::string> command = {options.executable};
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  ROTA_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::start(command));
  return EngineChild(std::nullopt, std::move(process));
}

Result<EngineChild> EngineChild::start_ranks(const EngineProcessOptions& options,
                                             const std::function<bool()>& stopping) {
  ROTA_ASSIGN_OR_RETURN(RunFolder folder, RunFolder::make());
  const fs::path socket = folder.path() / "front";
  ROTA_ASSIGN_OR_RETURN(const Listener listener, Listener::make(socket));
  ROTA_ASSIGN_OR_RETURN(const MpiLaunch launch, describe_launch(options, folder.path(), socket));
  const MpiCommand mpi = mpi_command(launch);
  ROTA_ASSIGN_OR_RETURN(ChildProcess process,
                        ChildProcess::start_group(mpi.command, mpi.environment));
  log::info("engine: {} ranks by {} ({}), files in {}", launch.ranks, launch.mpirun, process.pid(),
            launch.run_folder);
  EngineChild child(std::move(folder), std::move(process));
  const auto start = Clock::now();
  int connection = -1;
  while ((connection = listener.poll_connection()) < 0) {
    if (stopping()) return error(StatusCode::kUnavailable, "the server is shutting down");
    if (child.process_.has_ended()) {
      return error(StatusCode::kUnavailable, "mpirun {} before its ranks had met",
                   child.process_.end(0));
    }
    if (seconds_since(start) > kConnectSeconds) {
      return error(StatusCode::kUnavailable, "the {} ranks had not met within {:.0f} s",
                   launch.ranks, kConnectSeconds);
    }
  }
  child.process_.set_socket(connection);
  return child;
}

std::string EngineChild::end(double seconds) {
  return process_.end(folder_ && seconds > 0 ? std::max(seconds, kRanksGraceSeconds) : seconds);
}

}  // namespace rota

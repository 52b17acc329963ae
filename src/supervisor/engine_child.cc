#include "supervisor/engine_child.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/log.h"
#include "platform/clock.h"
#include "supervisor/check_launch.h"
#include "supervisor/local_launch.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

constexpr double kConnectSeconds = 180;   // many ranks on few cores, on hosts that are asked first
constexpr double kRanksGraceSeconds = 5;  // MPI's own end
constexpr int kPollMilliseconds = 20;

// A socket in the run folder on which rank 0 is awaited.
class Listener {
 public:
  static Result<Listener> make(const fs::path& folder) {
    ROTA_RETURN_IF_ERROR(check_length(folder));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = (folder / kFrontSocket).string();
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

Result<MpiLaunch> describe_launch(const EngineProcessOptions& options, const fs::path& folder,
                                  const fs::path& socket) {
  const ParallelOptions& parallel = options.engine.parallel;
  LocalLaunch local{.ranks = parallel.tensor_parallel_size * parallel.data_parallel_size,
                    .executable = options.executable,
                    .arguments = options.rank_arguments,
                    .run_folder = folder,
                    .hostfile = options.hostfile};
  local.arguments.insert(local.arguments.end(), {"--front", socket.string()});
  return local_launch(local);
}

// Settings of OpenMPI that this process was started with.
std::string given_settings(const MpiLaunch& launch) {
  std::string names;
  for (const std::string& it : launch.environment) {
    if (it.starts_with("OMPI_MCA_")) {
      names += (names.empty() ? "" : ", ") + it.substr(0, it.find('='));
    }
  }
  return names.empty() ? "" : fmt::format("; set in the environment: {}, try without", names);
}

// What to do about an mpirun that has ended before its ranks had met.
std::string advice(const MpiLaunch& launch) {
  if (launch.hostfile.empty()) {
    return fmt::format("; what it said stands above, and `rota doctor` tells more{}",
                       given_settings(launch));
  }
  return fmt::format(
      "; what it said stands above. Each host of {} must be reached without a password, and have "
      "{} "
      "at the same path: `rota doctor -dp {} --hostfile {}` says which does not{}",
      launch.hostfile, launch.command[0], launch.ranks, launch.hostfile, given_settings(launch));
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
  return EngineChild(std::move(process));
}

Result<EngineChild> EngineChild::start_ranks(const EngineProcessOptions& options,
                                             const std::function<bool()>& stopping) {
  ROTA_ASSIGN_OR_RETURN(RunFolder folder, RunFolder::make());
  const fs::path socket = folder.path() / kFrontSocket;
  ROTA_ASSIGN_OR_RETURN(const Listener listener, Listener::make(folder.path()));
  ROTA_ASSIGN_OR_RETURN(const MpiLaunch launch, describe_launch(options, folder.path(), socket));
  const MpiCommand mpi = mpi_command(launch);
  ROTA_ASSIGN_OR_RETURN(RankOutput output, RankOutput::make(launch.ranks));
  ROTA_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::start_group(mpi.command, mpi.environment, {.output = output.to()}));
  output.close_to();
  log::info("engine: {} ranks by {} ({}), files in {}", launch.ranks, launch.mpirun, process.pid(),
            launch.run_folder);
  EngineChild child(std::move(folder), std::move(output), std::move(process));
  const auto start = Clock::now();
  int connection = -1;
  while ((connection = listener.poll_connection()) < 0) {
    if (stopping()) return error(StatusCode::kUnavailable, "the server is shutting down");
    if (child.process_.has_ended()) {
      return error(StatusCode::kUnavailable, "mpirun {} before its ranks had met{}",
                   child.process_.end(0), advice(launch));
    }
    child.read_output();
    const std::string silence = child.silence(options.engine.parallel.rank_timeout);
    if (!silence.empty()) {
      return error(StatusCode::kUnavailable, "{}{}", silence, advice(launch));
    }
    if (seconds_since(start) > kConnectSeconds) {
      return error(StatusCode::kUnavailable, "the {} ranks had not met within {:.0f} s{}",
                   launch.ranks, kConnectSeconds, advice(launch));
    }
  }
  child.process_.set_socket(connection);
  return child;
}

void EngineChild::read_output() {
  if (ranks_) ranks_->read();
}

std::string EngineChild::silence(double rank_timeout) const {
  return ranks_ ? ranks_->silence(rank_timeout) : "";
}

std::string EngineChild::end(double seconds) {
  return process_.end(folder_ && seconds > 0 ? std::max(seconds, kRanksGraceSeconds) : seconds);
}

}  // namespace rota

#include "engine/engine_rank.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/mpi.h"
#include "engine/engine_server.h"
#include "engine/in_process_engine.h"
#include "engine/load_agreement.h"
#include "engine/load_engine.h"
#include "engine/rank_loop.h"
#include "engine/rank_pulse.h"

namespace rota {
namespace {

Result<int> connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid_argument("--front {}: longer than {} bytes", path, sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    return fd;
  }
  const int fault = errno;
  if (fd >= 0) ::close(fd);
  return error(StatusCode::kIo, "the front's socket {}: {}; rank 0 must be on the front's host",
               path, std::strerror(fault));
}

// Held until this process has ended, however it ends: the front waits for it before it deletes the
// folder. On another host there is no such file.
void tell_alive(const std::string& front) {
  const auto path = std::filesystem::path(front).parent_path() / kRanksAliveFile;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) ::flock(fd, LOCK_SH);
}

// The end of a process that others may wait for: nothing is unwound, MPI would wait for them too.
[[noreturn]] void give_up(const Status& status) {
  log::error("{}", status.message());
  std::fflush(nullptr);
  std::_Exit(kEngineRankLostExitCode);
}

// The communicator that the model uses, with the deadline and the checks that were asked for.
Result<std::unique_ptr<Communicator>> make_world(MpiRanks& mpi, const EngineOptions& options) {
  return mpi.world({.timeout_seconds = options.parallel.rank_timeout,
                    .check_collectives = options.parallel.check_collectives});
}

// What rank 0 says, to all. Collective; the others say nothing.
Result<std::string> broadcast(Communicator& ranks, std::string_view mine) {
  ROTA_ASSIGN_OR_RETURN(const std::vector<std::string> all, gather_texts(ranks, mine));
  return all[0];
}

int serve_first(MpiRanks& mpi, Communicator& setup, int socket, RankPulse& pulse) {
  std::unique_ptr<Communicator> world;  // outlives the engine
  return serve_front(socket,
                     [&](const EngineOptions& options) -> Result<std::unique_ptr<InProcessEngine>> {
                       ROTA_RETURN_IF_ERROR(broadcast(setup, to_json(options).dump()));
                       ROTA_ASSIGN_OR_RETURN(world, make_world(mpi, options));
                       ROTA_ASSIGN_OR_RETURN(LoadedEngine loaded, load_engine(options, *world));
                       pulse.loaded();
                       return InProcessEngine::start(std::move(loaded),
                                                     [](const Status& status) { give_up(status); });
                     });
}

Status serve_other(MpiRanks& mpi, Communicator& setup, RankPulse& pulse) {
  ROTA_ASSIGN_OR_RETURN(const std::string text, broadcast(setup, {}));
  ROTA_ASSIGN_OR_RETURN(const EngineOptions options,
                        engine_options_from_json(nlohmann::json::parse(text, nullptr, false)));
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> world, make_world(mpi, options));
  Result<LoadedEngine> loaded = load_engine(options, *world);
  // What cannot be loaded is told by rank 0, whose end is then that of all.
  while (!loaded.ok() && loaded.status().code() != StatusCode::kUnavailable) ::pause();
  if (!loaded.ok()) return loaded.status();
  pulse.loaded();
  return serve_rank(*loaded);
}

}  // namespace

int run_engine_rank(const std::string& front) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  tell_alive(front);
  RankPulse pulse;  // from before MPI's start, in which a rank may hang
  Result<std::unique_ptr<MpiRanks>> mpi = MpiRanks::start();
  if (!mpi.ok()) give_up(mpi.status());
  Result<std::unique_ptr<Communicator>> setup = (*mpi)->world();
  if (!setup.ok()) give_up(setup.status());
  const int rank = (*setup)->rank();
  if (rank != 0) {
    log::set_name(fmt::format("rank {}", rank));
    if (std::getenv("ROTA_LOG_LEVEL") == nullptr) log::set_level(log::Level::kWarning);
    const Status status = serve_other(**mpi, **setup, pulse);
    if (!status.ok()) give_up(status);
    return 0;
  }
  const Result<int> socket = connect_to(front);
  if (!socket.ok()) give_up(socket.status());
  const int code = serve_first(**mpi, **setup, *socket, pulse);
  if (code == 0) return 0;
  std::fflush(nullptr);
  std::_Exit(code);  // nothing is unwound, as in give_up()
}

}  // namespace rota

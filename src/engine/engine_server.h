// The engine's own process: serves EngineClient calls that arrive as frames (wire.h) on a socket.
//
//   return run_engine_worker(fd);      // `rota engine-worker --fd N`, started by the supervisor
//
// Waits for a start frame with EngineOptions, loads, says hello, then serves until the other end
// closes the socket. One thread reads, one steps, one sends heartbeats (also while loading). An
// engine of several processes: engine_rank.h.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/in_process_engine.h"

namespace rota {

// Exit codes beyond 0 (the front closed the socket): the supervisor names them in its log.
inline constexpr int kEngineLoadFailedExitCode = 65;
inline constexpr int kEngineProtocolExitCode = 66;
inline constexpr int kEngineRankLostExitCode = 67;

// The process's exit code. Takes the descriptor.
int run_engine_worker(int fd);

// The same for an engine that `start` makes. It fails with kUnavailable: a rank was lost while
// loading, of which the front is not told as of a model that cannot be loaded.
using StartEngineFn = std::function<Result<std::unique_ptr<InProcessEngine>>(const EngineOptions&)>;
int serve_front(int fd, const StartEngineFn& start);

}  // namespace rota

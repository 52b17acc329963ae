// The engine's own process: serves EngineClient calls that arrive as frames (wire.h) on a socket.
//
//   return run_engine_worker(fd);      // `rota engine-worker --fd N`, started by the supervisor
//
// Waits for a start frame with EngineOptions, loads, says hello, then serves until the other end
// closes the socket. One thread reads, one steps, one sends heartbeats (also while loading).
#pragma once

namespace rota {

// Exit codes beyond 0 (the front closed the socket): the supervisor names them in its log.
inline constexpr int kEngineLoadFailedExitCode = 65;
inline constexpr int kEngineProtocolExitCode = 66;

// The process's exit code. Takes the descriptor.
int run_engine_worker(int fd);

}  // namespace rota

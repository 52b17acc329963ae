// The engine in a process of its own: starts it, talks to it over a Unix socket, notices when it
// dies or hangs, and starts it again.
//
//   ROTA_ASSIGN_OR_RETURN(auto engine, SocketEngineClient::start({.engine = options}));
//   engine->submit(request, on_output);     // kUnavailable until it is ready: state() says which
//
// Contract: start() returns at once, the engine loads meanwhile (kLoading). When the process exits,
// is killed or does not answer, it is started again (kRestarting) and given every outstanding
// request with the tokens that were told of it: clients see a pause, then the tokens of an
// undisturbed run. Requests are taken during the pause too, and wait. A request that was with the
// engine in three deaths in a row ends alone, with kInternal; one that the new engine has no room
// for, with what it asked for. After too many failures (RestartLimits), or if the model cannot be
// loaded at first, the engine stays down (kFailed): outstanding requests get kUnavailable and why,
// as do info() and submit(). No process outlives this object, or this process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"
#include "supervisor/restart_policy.h"

namespace rota {

struct EngineProcessOptions {
  EngineOptions engine;
  std::string executable = "/proc/self/exe";
  std::vector<std::string> arguments = {"engine-worker"};     // followed by: --fd N
  std::vector<std::string> rank_arguments = {"engine-rank"};  // of several: --front PATH
  std::string hostfile = {};      // of several ranks: MPI's list of hosts; empty: this one
  double heartbeat_timeout = 15;  // seconds without any sign of the process: it is killed
  double step_timeout = 600;      // seconds in one step: it is killed
  RestartLimits restarts;
};

class SocketEngineClient final : public EngineClient {
 public:
  static Result<std::unique_ptr<SocketEngineClient>> start(EngineProcessOptions options);
  ~SocketEngineClient() override;  // end()

  EngineState state() const override;
  double seconds_since_heartbeat() const override;
  Result<EngineInfo> info() const override;
  Status submit(EngineRequest request, OutputFn on_output) override;
  void cancel(std::string_view id) override;
  EngineStats stats() const override;

  // Waits until the engine is ready. The error says why it never will be; kUnavailable: not in
  // time.
  Status wait_until_ready(double seconds) const;

  // For SIGTERM: refuses new requests (kDraining), waits for the others. Those that are left after
  // `seconds` get kUnavailable. True if none was left.
  bool drain(double seconds);

  // Ends the process, from any thread; outstanding requests get kUnavailable. Nothing of it is left
  // when it returns: no process, no file.
  void end();

  pid_t pid() const;             // of the engine process; -1 while there is none
  int64_t restarts() const;      // so far
  int64_t unsent_bytes() const;  // of messages that the process has not taken yet

 private:
  class Impl;
  explicit SocketEngineClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rota

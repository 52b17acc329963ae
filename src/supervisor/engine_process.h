// The engine in a process of its own: starts it, talks to it over a Unix socket, notices when it
// dies or hangs, and starts it again.
//
//   ROTA_ASSIGN_OR_RETURN(auto engine, SocketEngineClient::start({.engine = options}));
//   engine->submit(request, on_output);     // kUnavailable until it is ready: state() says which
//
// Contract: start() returns at once, the engine loads meanwhile (kLoading). When the process exits,
// is killed or does not answer, every outstanding request gets kError with kUnavailable and the
// engine is started again after a pause that doubles (kRestarting); after `max_failures` failures
// without a healthy minute between them, or a model that cannot be loaded, it stays down (kFailed:
// info() and submit() say why). No process outlives this object, or this process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"

namespace rota {

struct EngineProcessOptions {
  EngineOptions engine;
  std::string executable = "/proc/self/exe";
  std::vector<std::string> arguments = {"engine-worker"};  // followed by: --fd N
  double heartbeat_timeout = 15;  // seconds without any sign of the process: it is killed
  double step_timeout = 600;      // seconds in one step: it is killed
  double first_backoff = 0.5;     // seconds before a restart; doubles
  double max_backoff = 30;
  int max_failures = 5;
};

class SocketEngineClient final : public EngineClient {
 public:
  static Result<std::unique_ptr<SocketEngineClient>> start(EngineProcessOptions options);
  ~SocketEngineClient() override;  // ends the process; outstanding requests get kUnavailable

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

  pid_t pid() const;             // of the engine process; -1 while there is none
  int64_t restarts() const;      // so far
  int64_t unsent_bytes() const;  // of messages that the process has not taken yet

 private:
  class Impl;
  explicit SocketEngineClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rota

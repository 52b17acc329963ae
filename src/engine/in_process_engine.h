// An engine on a thread of this process: what `rota generate`, `chat` and `bench` use. Where
// several ranks share the model this is rank 0, and the others run serve_rank() (rank_loop.h).
//
//   ROTA_ASSIGN_OR_RETURN(auto engine, InProcessEngine::start(options));
//   engine->submit(request, on_output);       // EngineClient: outputs come from the engine's
//   thread
//
// The thread parks while there is nothing to do. Destroying the engine ends it, and all ranks,
// after the step that is running; requests that are left get kUnavailable. So do all requests once
// a rank has failed: state() is kFailed then, and nothing brings it back.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"
#include "engine/load_engine.h"

namespace rota {

class InProcessEngine final : public EngineClient {
 public:
  using FailureFn = std::function<void(const Status&)>;

  // Loads the model (load_engine) and runs a warm-up step; returns when requests are served.
  static Result<std::unique_ptr<InProcessEngine>> start(const EngineOptions& options);
  // on_failure: called on the engine's thread when a rank has failed, before any client is told.
  static Result<std::unique_ptr<InProcessEngine>> start(LoadedEngine loaded,
                                                        FailureFn on_failure = {});
  ~InProcessEngine() override;

  EngineState state() const override;
  double seconds_since_heartbeat() const override;
  Result<EngineInfo> info() const override;
  Status submit(EngineRequest request, OutputFn on_output) override;
  void cancel(std::string_view id) override;
  EngineStats stats() const override;

  // No new requests (kUnavailable); true when the ones there were finished within that time.
  bool drain(double seconds);

  // What was loaded. The model and the cache belong to the engine's thread.
  const LoadedEngine& loaded() const;

  // Called on the engine's thread after every step that delivered outputs, and after news of the
  // statistics; set before the first submit(). The engine's own process sends one frame a step with
  // it.
  void set_step_end(std::function<void()> step_end);

 private:
  struct State;
  explicit InProcessEngine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace rota

// An engine on a thread of this process: what `rota generate`, `chat` and `bench` use.
//
//   ROTA_ASSIGN_OR_RETURN(auto engine, InProcessEngine::start(options));
//   engine->submit(request, on_output);       // EngineClient: outputs come from the engine's
//   thread
//
// The thread parks while there is nothing to do. Destroying the engine ends it after the step that
// is running; requests that are left get kUnavailable.
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
  // Loads the model (load_engine) and runs a warm-up step; returns when requests are served.
  static Result<std::unique_ptr<InProcessEngine>> start(const EngineOptions& options);
  static Result<std::unique_ptr<InProcessEngine>> start(LoadedEngine loaded);
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

  // Called on the engine's thread after every step that delivered outputs; set before the first
  // submit(). The engine's own process sends one frame a step with it.
  void set_step_end(std::function<void()> step_end);

 private:
  struct State;
  explicit InProcessEngine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace rota

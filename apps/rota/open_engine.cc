#include "rota/open_engine.h"

#include <utility>

#include "checkpoint/locate.h"
#include "checkpoint/model_config.h"
#include "engine/engine_plan.h"
#include "engine/in_process_engine.h"
#include "engine/memory_profile.h"
#include "engine/parallel_choice.h"
#include "platform/cpu.h"
#include "supervisor/engine_process.h"

namespace rota {
namespace {

constexpr double kSecondsBetweenLooks = 3600;

Result<std::unique_ptr<EngineClient>> open_ranks(const EngineOptions& options,
                                                 const std::string& hostfile) {
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  ROTA_RETURN_IF_ERROR(check_engine(options, location.dir));
  ROTA_ASSIGN_OR_RETURN(
      std::unique_ptr<SocketEngineClient> engine,
      SocketEngineClient::start({.engine = options, .hostfile = hostfile, .restarts = {}}));
  // However long it takes: whoever started the command can end it.
  while (engine->state() != EngineState::kReady) {
    const Status ready = engine->wait_until_ready(kSecondsBetweenLooks);
    if (engine->state() == EngineState::kFailed) return ready;
  }
  return std::unique_ptr<EngineClient>(std::move(engine));
}

}  // namespace

Status check_engine(const EngineOptions& options, const std::filesystem::path& model_dir) {
  ROTA_ASSIGN_OR_RETURN(const ModelConfig config,
                        read_model_config(model_dir, {.hf_overrides = options.hf_overrides}));
  ROTA_ASSIGN_OR_RETURN(const EnginePlan plan, plan_engine(options, config, detect_cpu()));
  return status_of(plan_kv_budget(memory_profile(plan, options, config, 0)));
}

Result<std::unique_ptr<EngineClient>> open_engine(const EngineOptions& options,
                                                  const std::string& hostfile) {
  ROTA_ASSIGN_OR_RETURN(const ParallelChoice parallel, choose_parallel(options.parallel));
  if (parallel.shape.dp * parallel.shape.tp > 1) return open_ranks(options, hostfile);
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<InProcessEngine> engine, InProcessEngine::start(options));
  return std::unique_ptr<EngineClient>(std::move(engine));
}

}  // namespace rota

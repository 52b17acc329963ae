#include "rota/open_engine.h"

#include <unistd.h>

#include <csignal>
#include <ctime>
#include <thread>
#include <utility>

#include "checkpoint/locate.h"
#include "checkpoint/model_config.h"
#include "engine/engine_plan.h"
#include "engine/in_process_engine.h"
#include "engine/memory_profile.h"
#include "engine/parallel_choice.h"
#include "platform/cpu.h"
#include "supervisor/check_launch.h"
#include "supervisor/engine_process.h"

namespace rota {
namespace {

constexpr double kSecondsBetweenLooks = 3600;
constexpr long kNanosecondsBetweenLooks = 100'000'000;

sigset_t ending_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int it : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, it);
  return signals;
}

// Ctrl-C and its like end the ranks first, then this process. Signals are kept from threads that
// are started later, too.
class EndingSignals {
 public:
  EndingSignals() {
    const sigset_t signals = ending_signals();
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  }
  void watch(SocketEngineClient& engine) {
    thread_ = std::jthread([&engine](const std::stop_token& stop) { wait(engine, stop); });
  }

 private:
  static void wait(SocketEngineClient& engine, const std::stop_token& stop) {
    const sigset_t signals = ending_signals();
    const timespec pause{.tv_sec = 0, .tv_nsec = kNanosecondsBetweenLooks};
    while (!stop.stop_requested()) {
      const int signal = ::sigtimedwait(&signals, nullptr, &pause);
      if (signal <= 0) continue;
      engine.end();
      ::_exit(128 + signal);
    }
  }

  std::jthread thread_;
};

// Ranks that a command has to itself.
class OwnRanks final : public EngineClient {
 public:
  static Result<std::unique_ptr<OwnRanks>> start(EngineProcessOptions options) {
    auto ranks = std::unique_ptr<OwnRanks>(new OwnRanks);
    ROTA_ASSIGN_OR_RETURN(ranks->engine_, SocketEngineClient::start(std::move(options)));
    ranks->signals_.watch(*ranks->engine_);
    return ranks;
  }

  // However long it takes: whoever started the command can end it.
  Status wait_until_ready() const {
    for (;;) {
      const Status ready = engine_->wait_until_ready(kSecondsBetweenLooks);
      if (ready.ok() || state() == EngineState::kFailed) return ready;
    }
  }

  EngineState state() const override { return engine_->state(); }
  double seconds_since_heartbeat() const override { return engine_->seconds_since_heartbeat(); }
  Result<EngineInfo> info() const override { return engine_->info(); }
  Status submit(EngineRequest request, OutputFn on_output) override {
    return engine_->submit(std::move(request), std::move(on_output));
  }
  void cancel(std::string_view id) override { engine_->cancel(id); }
  EngineStats stats() const override { return engine_->stats(); }

 private:
  OwnRanks() = default;

  std::unique_ptr<SocketEngineClient> engine_;
  EndingSignals signals_;  // last: it uses the engine
};

Result<std::unique_ptr<EngineClient>> open_ranks(const EngineOptions& options,
                                                 const std::string& hostfile) {
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  ROTA_RETURN_IF_ERROR(check_engine(options, location.dir, hostfile));
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<OwnRanks> ranks,
                        OwnRanks::start({.engine = options, .hostfile = hostfile, .restarts = {}}));
  ROTA_RETURN_IF_ERROR(ranks->wait_until_ready());
  return std::unique_ptr<EngineClient>(std::move(ranks));
}

}  // namespace

Status check_engine(const EngineOptions& options, const std::filesystem::path& model_dir,
                    const std::string& hostfile) {
  ROTA_ASSIGN_OR_RETURN(const ModelConfig config,
                        read_model_config(model_dir, {.hf_overrides = options.hf_overrides}));
  ROTA_ASSIGN_OR_RETURN(const EnginePlan plan, plan_engine(options, config, detect_cpu()));
  ROTA_ASSIGN_OR_RETURN(const ParallelChoice parallel, choose_parallel(options.parallel));
  ROTA_RETURN_IF_ERROR(
      status_of(plan_moe(moe_config(config), options.moe, plan.moe.context, parallel.of_rank(0))));
  ROTA_RETURN_IF_ERROR(status_of(plan_kv_budget(memory_profile(plan, options, config, 0))));
  const int ranks = parallel.shape.ranks();
  return ranks > 1 ? check_launch(ranks, hostfile) : Status();
}

Result<std::unique_ptr<EngineClient>> open_engine(const EngineOptions& options,
                                                  const std::string& hostfile) {
  ROTA_ASSIGN_OR_RETURN(const ParallelChoice parallel, choose_parallel(options.parallel));
  if (parallel.shape.ranks() > 1) return open_ranks(options, hostfile);
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<InProcessEngine> engine, InProcessEngine::start(options));
  return std::unique_ptr<EngineClient>(std::move(engine));
}

}  // namespace rota

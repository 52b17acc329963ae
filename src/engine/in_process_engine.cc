#include "engine/in_process_engine.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/engine_core.h"
#include "engine/rank_loop.h"
#include "engine/request_desk.h"
#include "platform/clock.h"

namespace rota {
namespace {

constexpr double kSecondsBetweenExpertCounts = 1;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct InProcessEngine::State {
  State(LoadedEngine engine, FailureFn failure_fn)
      : loaded(std::move(engine)), on_failure(std::move(failure_fn)) {}

  LoadedEngine loaded;
  FailureFn on_failure;
  std::unique_ptr<EngineCore> core;  // the engine thread's alone
  std::unique_ptr<RankLoop> ranks;   // where there are several
  RequestDesk desk;
  std::mutex step_end_mutex;
  std::function<void()> step_end;

  std::atomic<bool> idle = true;
  std::atomic<int64_t> last_step_ns = now_ns();
  Clock::time_point expert_counts_at;
  std::thread thread;

  void run_ranks();
  void run_alone();
  void wait_for_work();
  void end_step();
  void execute(RequestDesk::Command& command);
  void start_request(RequestDesk::Submission& submission);
  void publish_stats(bool with_expert_tokens);
};

Result<std::unique_ptr<InProcessEngine>> InProcessEngine::start(const EngineOptions& options) {
  ROTA_ASSIGN_OR_RETURN(LoadedEngine loaded, load_engine(options));
  return start(std::move(loaded));
}

Result<std::unique_ptr<InProcessEngine>> InProcessEngine::start(LoadedEngine loaded,
                                                                FailureFn on_failure) {
  auto state = std::make_unique<State>(std::move(loaded), std::move(on_failure));
  ROTA_ASSIGN_OR_RETURN(state->core, EngineCore::make(state->loaded));
  state->desk.open(state->core->info());
  const bool alone = state->loaded.ranks.world->ranks() == 1;
  if (!alone) {
    ROTA_ASSIGN_OR_RETURN(state->ranks,
                          RankLoop::make(state->loaded, *state->core,
                                         {.desk = &state->desk,
                                          .step_end = [raw = state.get()] { raw->end_step(); },
                                          .last_step_ns = &state->last_step_ns}));
  }
  state->publish_stats(true);
  State* raw = state.get();
  std::unique_ptr<InProcessEngine> engine(new InProcessEngine(std::move(state)));
  raw->thread = std::thread([raw, alone] { alone ? raw->run_alone() : raw->run_ranks(); });
  return engine;
}

InProcessEngine::InProcessEngine(std::unique_ptr<State> state) : state_(std::move(state)) {}

InProcessEngine::~InProcessEngine() {
  state_->desk.stop();
  if (state_->thread.joinable()) state_->thread.join();
}

void InProcessEngine::State::run_ranks() {
  idle = false;  // parked ranks still meet: health is theirs
  const Status status = ranks->run();
  if (!status.ok() && on_failure) on_failure(status);
  desk.fail(status.ok()
                ? error(StatusCode::kUnavailable, "the engine was stopped")
                : error(StatusCode::kUnavailable, "the engine has failed: {}", status.message()));
  end_step();
}

void InProcessEngine::State::run_alone() {
  std::vector<RequestDesk::Command> commands;
  for (;;) {
    wait_for_work();
    if (!desk.take(commands)) break;
    for (RequestDesk::Command& command : commands) execute(command);
    core->step();
    last_step_ns = now_ns();
    const bool due = seconds_since(expert_counts_at) > kSecondsBetweenExpertCounts;
    publish_stats(due || !core->has_work());
    end_step();
  }
  desk.fail(error(StatusCode::kUnavailable, "the engine was stopped"));
  end_step();
}

// Parks while there is nothing to do.
void InProcessEngine::State::wait_for_work() {
  if (core->has_work()) return;
  idle = true;
  desk.wait();
  last_step_ns = now_ns();
  idle = false;
}

void InProcessEngine::State::end_step() {
  const std::lock_guard lock(step_end_mutex);
  if (step_end) step_end();
}

void InProcessEngine::State::execute(RequestDesk::Command& command) {
  if (auto* submission = std::get_if<RequestDesk::Submission>(&command)) {
    start_request(*submission);
  } else {
    core->cancel(std::get<RequestDesk::Cancellation>(command).id);
  }
}

void InProcessEngine::State::start_request(RequestDesk::Submission& submission) {
  const std::shared_ptr<RequestDesk::Handle> handle = submission.handle;
  if (handle->cancelled) return;
  const auto deliver = [this, handle](const RequestOutput& output) {
    desk.deliver(*handle, output);
  };
  RequestOutput refused;
  refused.id = submission.request.id;
  refused.finish_reason = FinishReason::kError;
  refused.status = core->add(std::move(submission.request), deliver);
  if (!refused.status.ok()) deliver(refused);
}

void InProcessEngine::State::publish_stats(bool with_expert_tokens) {
  if (with_expert_tokens) {
    core->refresh_expert_tokens();
    expert_counts_at = Clock::now();
  }
  desk.publish(core->stats());
}

EngineState InProcessEngine::state() const { return state_->desk.state(); }

double InProcessEngine::seconds_since_heartbeat() const {
  if (state_->idle) return 0;
  return static_cast<double>(now_ns() - state_->last_step_ns) * 1e-9;
}

Result<EngineInfo> InProcessEngine::info() const { return state_->desk.info(); }

Status InProcessEngine::submit(EngineRequest request, OutputFn on_output) {
  return state_->desk.submit(std::move(request), std::move(on_output));
}

void InProcessEngine::cancel(std::string_view id) { state_->desk.cancel(id); }

EngineStats InProcessEngine::stats() const { return state_->desk.stats(); }

bool InProcessEngine::drain(double seconds) { return state_->desk.drain(seconds); }

const LoadedEngine& InProcessEngine::loaded() const { return state_->loaded; }

void InProcessEngine::set_step_end(std::function<void()> step_end) {
  const std::lock_guard lock(state_->step_end_mutex);
  state_->step_end = std::move(step_end);
}

}  // namespace rota

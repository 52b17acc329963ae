#include "engine/in_process_engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/engine_core.h"
#include "engine/engine_stats.h"
#include "platform/clock.h"

namespace rota {
namespace {

constexpr double kSecondsBetweenExpertCounts = 1;

// A request as its client holds it: cancelling it silences it at once.
struct Handle {
  EngineClient::OutputFn on_output;
  std::atomic<bool> cancelled = false;
};

struct Submission {
  EngineRequest request;
  std::shared_ptr<Handle> handle;
};
struct Cancellation {
  std::string id;
};
using Command = std::variant<Submission, Cancellation>;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct InProcessEngine::State {
  explicit State(LoadedEngine engine) : loaded(std::move(engine)) {}

  LoadedEngine loaded;
  EngineInfo info;
  std::unique_ptr<EngineCore> core;  // the engine thread's alone
  std::function<void()> step_end;

  std::mutex mutex;
  std::condition_variable wake;      // the engine thread: something to do
  std::condition_variable finished;  // drain(): a request is gone
  std::vector<Command> inbox;
  std::map<std::string, std::shared_ptr<Handle>, std::less<>> live;
  int ending = 0;  // requests whose last output is being delivered
  bool stopping = false;
  bool draining = false;
  EngineStats stats = empty_stats();

  std::atomic<bool> idle = true;
  std::atomic<int64_t> last_step_ns = now_ns();
  Clock::time_point expert_counts_at;
  std::thread thread;

  void run();
  bool wait_for_work(std::vector<Command>& commands);
  void execute(Command& command);
  void start_request(Submission& submission);
  void take_back(const std::string& id, const Handle* handle);
  void forget(const std::string& id, const Handle& handle);
  void count_ended();
  void publish_stats(bool with_expert_tokens);
};

Result<std::unique_ptr<InProcessEngine>> InProcessEngine::start(const EngineOptions& options) {
  ROTA_ASSIGN_OR_RETURN(LoadedEngine loaded, load_engine(options));
  return start(std::move(loaded));
}

Result<std::unique_ptr<InProcessEngine>> InProcessEngine::start(LoadedEngine loaded) {
  auto state = std::make_unique<State>(std::move(loaded));
  ROTA_ASSIGN_OR_RETURN(state->core, EngineCore::make(state->loaded));
  state->info = state->core->info();
  state->publish_stats(true);
  State* raw = state.get();
  std::unique_ptr<InProcessEngine> engine(new InProcessEngine(std::move(state)));
  raw->thread = std::thread([raw] { raw->run(); });
  return engine;
}

InProcessEngine::InProcessEngine(std::unique_ptr<State> state) : state_(std::move(state)) {}

InProcessEngine::~InProcessEngine() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

void InProcessEngine::State::run() {
  std::vector<Command> commands;
  while (wait_for_work(commands)) {
    for (Command& command : commands) execute(command);
    core->step();
    last_step_ns = now_ns();
    const bool due = seconds_since(expert_counts_at) > kSecondsBetweenExpertCounts;
    publish_stats(due || !core->has_work());
    if (step_end) step_end();
  }
  for (Command& command : commands) execute(command);
  core->fail_all(error(StatusCode::kUnavailable, "the engine was stopped"));
  if (step_end) step_end();
}

// Parks while there is nothing to do. False: the engine shall end; `commands` are the last ones.
bool InProcessEngine::State::wait_for_work(std::vector<Command>& commands) {
  commands.clear();
  std::unique_lock lock(mutex);
  if (!core->has_work() && inbox.empty()) {
    idle = true;
    wake.wait(lock, [&] { return stopping || !inbox.empty(); });
    last_step_ns = now_ns();
    idle = false;
  }
  commands.swap(inbox);
  return !stopping;
}

void InProcessEngine::State::execute(Command& command) {
  if (auto* submission = std::get_if<Submission>(&command)) {
    start_request(*submission);
  } else {
    core->cancel(std::get<Cancellation>(command).id);
  }
}

void InProcessEngine::State::start_request(Submission& submission) {
  std::shared_ptr<Handle> handle = submission.handle;
  if (handle->cancelled) return;
  const std::string id = submission.request.id;
  const auto deliver = [this, handle](const RequestOutput& output) {
    const bool last = output.finish_reason != FinishReason::kNone;
    if (last) forget(output.id, *handle);
    if (!handle->cancelled) handle->on_output(output);
    if (last) count_ended();
  };
  const Status status = core->add(std::move(submission.request), deliver);
  if (!status.ok()) {
    RequestOutput refused;
    refused.id = id;
    refused.finish_reason = FinishReason::kError;
    refused.status = status;
    deliver(refused);
  }
}

// Under the lock. A submission that the engine's thread has not fetched is dropped, so that asking and
// leaving during a long step takes no memory; another one is cancelled there.
void InProcessEngine::State::take_back(const std::string& id, const Handle* handle) {
  const auto unseen = std::find_if(inbox.begin(), inbox.end(), [&](const Command& command) {
    const auto* submission = std::get_if<Submission>(&command);
    return submission != nullptr && submission->handle.get() == handle;
  });
  if (unseen != inbox.end()) {
    inbox.erase(unseen);
  } else {
    inbox.emplace_back(Cancellation{id});
  }
}

// An id is free again before its client hears of the end.
void InProcessEngine::State::forget(const std::string& id, const Handle& handle) {
  const std::lock_guard lock(mutex);
  const auto found = live.find(id);
  if (found != live.end() && found->second.get() == &handle) live.erase(found);
  ++ending;
}

void InProcessEngine::State::count_ended() {
  const std::lock_guard lock(mutex);
  --ending;
  finished.notify_all();
}

void InProcessEngine::State::publish_stats(bool with_expert_tokens) {
  if (with_expert_tokens) {
    core->refresh_expert_tokens();
    expert_counts_at = Clock::now();
  }
  const EngineStats& current = core->stats();
  const std::lock_guard lock(mutex);
  stats = current;  // equal sizes: nothing is allocated
}

EngineState InProcessEngine::state() const {
  const std::lock_guard lock(state_->mutex);
  return state_->draining || state_->stopping ? EngineState::kDraining : EngineState::kReady;
}

double InProcessEngine::seconds_since_heartbeat() const {
  if (state_->idle) return 0;
  return static_cast<double>(now_ns() - state_->last_step_ns) * 1e-9;
}

Result<EngineInfo> InProcessEngine::info() const { return state_->info; }

Status InProcessEngine::submit(EngineRequest request, OutputFn on_output) {
  ROTA_RETURN_IF_ERROR(check_request(request, state_->info));
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->draining || state_->stopping) {
      return error(StatusCode::kUnavailable, "the engine is shutting down");
    }
    ROTA_RETURN_IF_ERROR(check_queue(static_cast<int64_t>(state_->live.size()), state_->info));
    auto handle = std::make_shared<Handle>();
    handle->on_output = std::move(on_output);
    if (!state_->live.emplace(request.id, handle).second) {
      return invalid_argument("request id \"{}\" is in use by a running request", request.id);
    }
    state_->inbox.emplace_back(Submission{std::move(request), std::move(handle)});
  }
  state_->wake.notify_one();
  return {};
}

void InProcessEngine::cancel(std::string_view id) {
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->live.find(id);
    if (found == state_->live.end()) return;
    found->second->cancelled = true;
    state_->take_back(found->first, found->second.get());
    state_->live.erase(found);
  }
  state_->wake.notify_one();
  state_->finished.notify_all();
}

EngineStats InProcessEngine::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

bool InProcessEngine::drain(double seconds) {
  std::unique_lock lock(state_->mutex);
  state_->draining = true;
  return state_->finished.wait_for(lock, std::chrono::duration<double>(seconds),
                                   [&] { return state_->live.empty() && state_->ending == 0; });
}

const LoadedEngine& InProcessEngine::loaded() const { return state_->loaded; }

void InProcessEngine::set_step_end(std::function<void()> step_end) {
  state_->step_end = std::move(step_end);
}

}  // namespace rota

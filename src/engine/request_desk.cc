#include "engine/request_desk.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/engine_stats.h"

namespace rota {

RequestDesk::RequestDesk() : stats_(empty_stats()) {}

void RequestDesk::open(const EngineInfo& info) { info_ = info; }

Status RequestDesk::submit(EngineRequest request, OutputFn on_output) {
  ROTA_RETURN_IF_ERROR(check_request(request, info_));
  {
    const std::lock_guard lock(mutex_);
    ROTA_RETURN_IF_ERROR(failure_);
    if (draining_ || stopping_) {
      return error(StatusCode::kUnavailable, "the engine is shutting down");
    }
    ROTA_RETURN_IF_ERROR(check_queue(static_cast<int64_t>(live_.size()), info_));
    auto handle = std::make_shared<Handle>();
    handle->on_output = std::move(on_output);
    if (!live_.emplace(request.id, handle).second) {
      return invalid_argument("request id \"{}\" is in use by a running request", request.id);
    }
    inbox_.emplace_back(Submission{std::move(request), std::move(handle)});
  }
  wake_.notify_one();
  return {};
}

void RequestDesk::cancel(std::string_view id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    found->second->cancelled = true;
    take_back(found->first, found->second.get());
    live_.erase(found);
  }
  wake_.notify_one();
  finished_.notify_all();
}

// Under the lock. A submission that the engine's thread has not fetched is dropped, so that asking
// and leaving during a long step takes no memory; another one is cancelled there.
void RequestDesk::take_back(const std::string& id, const Handle* handle) {
  const auto unseen = std::find_if(inbox_.begin(), inbox_.end(), [&](const Command& command) {
    const auto* submission = std::get_if<Submission>(&command);
    return submission != nullptr && submission->handle.get() == handle;
  });
  if (unseen != inbox_.end()) {
    inbox_.erase(unseen);
  } else {
    inbox_.emplace_back(Cancellation{id});
  }
}

EngineStats RequestDesk::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

EngineState RequestDesk::state() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return EngineState::kFailed;
  return draining_ || stopping_ ? EngineState::kDraining : EngineState::kReady;
}

bool RequestDesk::drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  return finished_.wait_for(lock, std::chrono::duration<double>(seconds),
                            [&] { return live_.empty() && ending_ == 0; });
}

void RequestDesk::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

bool RequestDesk::take(std::vector<Command>& commands) {
  commands.clear();
  const std::lock_guard lock(mutex_);
  commands.swap(inbox_);
  return !stopping_;
}

void RequestDesk::wait() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stopping_ || !inbox_.empty(); });
}

bool RequestDesk::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return wake_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return stopping_ || !inbox_.empty(); });
}

void RequestDesk::deliver(Handle& handle, const RequestOutput& output) {
  const bool last = output.finish_reason != FinishReason::kNone;
  if (last) forget(output.id, handle);
  if (!handle.cancelled) handle.on_output(output);
  if (last) count_ended();
}

// An id is free again before its client hears of the end.
void RequestDesk::forget(const std::string& id, const Handle& handle) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(id);
  if (found != live_.end() && found->second.get() == &handle) live_.erase(found);
  ++ending_;
}

void RequestDesk::count_ended() {
  const std::lock_guard lock(mutex_);
  --ending_;
  finished_.notify_all();
}

void RequestDesk::publish(const EngineStats& stats) {
  const std::lock_guard lock(mutex_);
  stats_ = stats;  // equal sizes: nothing is allocated
}

void RequestDesk::fail(const Status& status) {
  std::map<std::string, std::shared_ptr<Handle>, std::less<>> left;
  {
    const std::lock_guard lock(mutex_);
    failure_ = status;
    inbox_.clear();
    left.swap(live_);
  }
  for (const auto& [id, handle] : left) {
    RequestOutput output;
    output.id = id;
    output.finish_reason = FinishReason::kError;
    output.status = status;
    if (!handle->cancelled) handle->on_output(output);
  }
  finished_.notify_all();
}

}  // namespace rota

// One request of an EngineClient, read in the calling thread.
//
//   RequestStream stream(engine);
//   ROTA_RETURN_IF_ERROR(stream.submit(request));
//   while (auto output = stream.next()) ...        // nullopt after the last one
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/engine_client.h"

namespace rota {

class RequestStream {
 public:
  explicit RequestStream(EngineClient& engine) : engine_(engine) {}
  ~RequestStream() { cancel(); }
  RequestStream(const RequestStream&) = delete;
  RequestStream& operator=(const RequestStream&) = delete;

  Status submit(EngineRequest request) {
    id_ = request.id;
    return engine_.submit(std::move(request), [shared = shared_](const RequestOutput& output) {
      const std::lock_guard lock(shared->mutex);
      shared->outputs.push_back(output);
      shared->changed.notify_one();
    });
  }

  // The engine's next word; nullopt after the one that finished the request.
  std::optional<RequestOutput> next() {
    if (finished_) return std::nullopt;
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [&] { return !shared_->outputs.empty(); });
    RequestOutput output = std::move(shared_->outputs.front());
    shared_->outputs.pop_front();
    finished_ = output.finish_reason != FinishReason::kNone;
    return output;
  }

  void cancel() {
    if (!finished_ && !id_.empty()) engine_.cancel(id_);
    finished_ = true;
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<RequestOutput> outputs;
  };

  EngineClient& engine_;
  std::string id_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  bool finished_ = false;
};

}  // namespace rota

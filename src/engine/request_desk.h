// Where the clients of an engine and the thread that steps it meet: requests go in from any thread,
// outputs come out on the engine's.
//
// Contract: ids are unique among those that are live; an id is free again before its client hears
// of the end. Who cancels hears nothing more, but for an output that is just being delivered. A
// request that was cancelled before the engine's thread has seen it is never seen.
//
//   desk.submit(request, on_output);                      // clients
//
//   while (desk.take(commands)) {                          // the engine's thread
//     ... a step ...  desk.deliver(*submission.handle, output);
//     if (nothing_to_do) desk.wait();
//   }
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"

namespace rota {

class RequestDesk {
 public:
  using OutputFn = EngineClient::OutputFn;

  // A request as its client holds it.
  struct Handle {
    OutputFn on_output;
    std::atomic<bool> cancelled = false;  // silences it at once
  };
  struct Submission {
    EngineRequest request;
    std::shared_ptr<Handle> handle;
  };
  struct Cancellation {
    std::string id;
  };
  using Command = std::variant<Submission, Cancellation>;

  RequestDesk();

  // --- Clients. As EngineClient says it. ---
  Status submit(EngineRequest request, OutputFn on_output);
  void cancel(std::string_view id);
  EngineStats stats() const;
  EngineState state() const;
  // No new requests (kUnavailable); true when the ones there were finished within that time.
  bool drain(double seconds);
  void stop();  // the engine's thread shall end

  // --- The engine's thread. ---
  void open(const EngineInfo& info);  // before the first request: what is checked against
  const EngineInfo& info() const { return info_; }

  // Replaces `commands` by those that came since. False: the engine shall end, after these.
  bool take(std::vector<Command>& commands);
  void wait();                // until there is something to take
  bool wait(double seconds);  // the same, at most so long

  // Tells the client, and forgets the request if that was the last of it.
  void deliver(Handle& handle, const RequestOutput& output);
  void publish(const EngineStats& stats);
  // The engine has failed: whoever is left, or comes later, gets this.
  void fail(const Status& status);

 private:
  void take_back(const std::string& id, const Handle* handle);
  void forget(const std::string& id, const Handle& handle);
  void count_ended();

  EngineInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;      // the engine's thread: something to do
  std::condition_variable finished_;  // drain(): a request is gone
  std::vector<Command> inbox_;
  std::map<std::string, std::shared_ptr<Handle>, std::less<>> live_;
  int ending_ = 0;  // requests whose last output is being delivered
  bool stopping_ = false;
  bool draining_ = false;
  Status failure_;
  EngineStats stats_;
};

}  // namespace rota

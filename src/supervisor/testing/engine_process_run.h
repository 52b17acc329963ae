// The engine's process as tests run it: small models, answers that can be waited for.
//
//   const auto engine = start_ready();
//   Answer answer;
//   engine->submit(greedy("a", {1, 2, 3}, 8), answer.collect());
//   ASSERT_TRUE(answer.wait_for_end());
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/testing/small_engine.h"
#include "platform/clock.h"
#include "supervisor/engine_process.h"

namespace rota::testing {

// Long enough for a loaded machine under sanitizers: reaching it means that something hangs.
inline constexpr double kPatience = 120;

inline EngineProcessOptions process_options(const std::string& model = "gptoss-mxfp4-h160") {
  EngineProcessOptions options;
  options.engine.model = model_dir(model);
  options.engine.dtype = DtypeChoice::kFloat32;
  options.engine.threads = 1;
  options.engine.pin = false;
  options.engine.max_num_seqs = 8;
  options.engine.max_num_batched_tokens = 64;
  options.engine.max_model_len = 4096;
  options.engine.kv_cache_memory_bytes = 32 << 20;
  options.restarts.first_backoff = 0.05;
  return options;
}

inline std::unique_ptr<SocketEngineClient> start_ready(
    EngineProcessOptions options = process_options()) {
  auto engine = SocketEngineClient::start(std::move(options)).value();
  const Status ready = engine->wait_until_ready(kPatience);
  EXPECT_TRUE(ready.ok()) << ready.message();
  return engine;
}

// What came of a request, readable from the test's thread.
class Answer {
 public:
  EngineClient::OutputFn collect() {
    return [this](const RequestOutput& output) {
      const std::lock_guard lock(mutex_);
      all_.add(output);
      if (!output.prompt_logprobs.empty()) ++prompt_logprobs_told_;
      if (!output.tokens.empty()) cached_tokens_told_.insert(output.cached_tokens);
      id_ = output.id;
      changed_.notify_all();
    };
  }
  bool wait_for_tokens(size_t count) {
    return wait([&] { return all_.tokens.size() >= count; });
  }
  bool wait_for_end() {
    return wait([&] { return all_.finish_reason != FinishReason::kNone; });
  }
  Collected all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  std::vector<int32_t> tokens() { return all().tokens; }
  FinishReason finish_reason() { return all().finish_reason; }
  Status status() { return all().status; }
  int prompt_logprobs_told() {
    const std::lock_guard lock(mutex_);
    return prompt_logprobs_told_;
  }
  std::set<int64_t> cached_tokens_told() {
    const std::lock_guard lock(mutex_);
    return cached_tokens_told_;
  }
  std::string id() {
    const std::lock_guard lock(mutex_);
    return id_;
  }

 private:
  template <typename Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(kPatience), condition);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  Collected all_;
  int prompt_logprobs_told_ = 0;
  std::set<int64_t> cached_tokens_told_;
  std::string id_;
};

inline EngineRequest greedy(std::string id, std::vector<int32_t> prompt, int64_t max_tokens) {
  EngineRequest request = request_of(std::move(prompt), max_tokens);
  request.id = std::move(id);
  return request;
}

template <typename Condition>
bool eventually(Condition condition) {
  const auto start = Clock::now();
  while (!condition()) {
    if (seconds_since(start) > kPatience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace rota::testing

// One request inside the engine: its tokens so far, how far they are computed, its share of the
// cache, and where in its life it is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine_client.h"
#include "engine/kv_manager.h"
#include "engine/request.h"
#include "platform/clock.h"

namespace rota {

enum class Phase { kWaiting, kRunning, kFinished };

struct Sequence {
  EngineRequest request;
  EngineClient::OutputFn on_output;
  uint64_t arrival = 0;                // the engine's count of requests
  uint64_t seed = 0;                   // the request's, or drawn for it
  std::vector<int32_t> end_tokens;     // sorted: each of them ends it
  std::vector<int32_t> banned_tokens;  // sorted: until min_tokens were generated

  Phase phase = Phase::kWaiting;
  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt_tokens = 0;
  int64_t computed = 0;     // the first `computed` tokens have keys and values
  int64_t alone_until = 0;  // stepped alone up to this token, as a step of it failed
  SequenceKv kv;

  int64_t cached_tokens = 0;  // of the prompt, at its first start
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;  // until the first output
  bool started = false;                                          // has been scheduled once
  bool answered = false;                                         // has had its first output

  Clock::time_point arrived_at;
  Clock::time_point started_at;
  Clock::time_point first_token_at;

  int64_t total() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated() const { return total() - prompt_tokens; }
  int64_t remaining() const { return total() - computed; }
  bool decoding() const { return remaining() == 1 && generated() > 0; }
  bool wants_prompt_logprobs() const { return request.sampling.prompt_logprobs >= 0; }
  int64_t longest() const { return prompt_tokens + request.sampling.max_tokens; }
};

// Who goes first: the lower priority number, then the earlier arrival.
struct RunsBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request.priority != b->request.priority) {
      return a->request.priority < b->request.priority;
    }
    return a->arrival < b->arrival;
  }
};

}  // namespace rota

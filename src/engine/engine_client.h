// The door to an engine, the same whether it runs in this process or in its own, or several, behind
// a Unix socket (serve, and other commands with ranks).
//
//   // Called from the engine's or the reader's thread: be quick, do not wait in it.
//   client->submit(request, [&](const RequestOutput& out) { ... });
//   client->cancel(id);   // frees its KV within one step
//
// Thread-safe; cancel() may be called from within an output function. An output that is just being
// delivered may still arrive after cancel() has returned, none later. A request whose engine ends
// for good gets one output with FinishReason::kError and kUnavailable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine_topology.h"
#include "engine/request.h"

namespace rota {

struct EngineInfo {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t kv_tokens = 0;  // tokens that fit in the cache
  std::vector<int32_t> eos_token_ids;
  int64_t moe_layers = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  std::vector<std::string> choices;  // backend lines of the start-up log

  int64_t max_sequence_tokens = 0;  // what the whole KV cache holds of one sequence
  int64_t max_num_seqs = 0;         // running at once
  int64_t max_waiting = 0;          // places in the queue behind them
  SamplingParams default_sampling;  // what generation_config.json suggests, neutral elsewhere
  EngineTopology topology;
};

// What can be said of a request before it runs: the ranges of validate(), prompt ids, the context
// length, and whether the KV cache could ever hold it. kInvalidArgument with the real numbers.
Status check_request(const EngineRequest& request, const EngineInfo& info);

// Whether one more request may come while `live` run or wait. kResourceExhausted.
Status check_queue(int64_t live, const EngineInfo& info);

struct Histogram {
  std::vector<double> bounds;   // upper bounds, without +Inf
  std::vector<int64_t> counts;  // bounds.size() + 1
  double sum = 0;
};

// One of the ranks that share the model.
struct RankStats {
  int64_t rank = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  double kv_usage = 0;               // 0..1
  int64_t tokens = 0;                // that it has run, prompts and answers
  int64_t steps = 0;                 // with tokens of its own
  int64_t dummy_steps = 0;           // without, so that others could step
  int64_t header_bytes = 0;          // between steps: headers and messages, sent to other ranks
  int64_t payload_bytes = 0;         // of steps, sent to other ranks
  int64_t operations = 0;            // of steps, in which ranks met
  double step_seconds = 0;           // in steps, dummy ones too
  double communication_seconds = 0;  // of step_seconds, in operations: waiting for others included
  double header_seconds = 0;         // between steps, in operations
  // [experts] tokens that its experts served for all ranks, over all layers; where experts are
  // dealt.
  std::vector<int64_t> expert_tokens = {};
};

// How evenly experts keep their ranks busy (expert_balancer.h); nothing without --enable-eplb.
struct ExpertBalance {
  int64_t looks = 0;  // at the load, at the end of each interval
  int64_t moves = 0;  // slots that changed hands, over all layers
  // In the last window: the fullest rank of a layer over the mean, of all layers; 0: none yet.
  double imbalance = 0;
  std::vector<std::vector<std::vector<int32_t>>> held =
      {};  // [MoE layers][ranks]: experts that lie there now
};

// Everything /metrics shows of the engine, of all its ranks together. Counters only grow (they
// restart with the engine process).
struct EngineStats {
  int64_t running = 0;
  int64_t waiting = 0;
  double kv_usage = 0;         // 0..1
  int64_t prefix_queries = 0;  // tokens
  int64_t prefix_hits = 0;     // tokens
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t steps = 0;           // = replayed_steps + eager_steps
  int64_t replayed_steps = 0;  // of a captured decode step (step_captures.h)
  int64_t eager_steps = 0;
  int64_t captured_steps = 0;  // at the start
  double step_seconds = 0;     // of one rank alone; of several: in `ranks`
  int64_t major_faults = 0;
  Histogram iteration_tokens;
  Histogram queue_time, prefill_time, decode_time;  // seconds
  std::vector<std::vector<int64_t>> expert_tokens;  // [MoE layers][experts]
  std::vector<RankStats> ranks;                     // in order; of one rank alone: empty
  ExpertBalance balance;
  // Of the front, which outlives the engine's process: they do not restart with it.
  int64_t engine_restarts = 0;
  int64_t replayed_requests = 0;
};

enum class EngineState { kLoading, kReady, kRestarting, kDraining, kFailed };

class EngineClient {
 public:
  using OutputFn = std::function<void(const RequestOutput&)>;

  virtual ~EngineClient() = default;
  virtual EngineState state() const = 0;
  // Seconds since the engine last finished a step or said that it idles: health looks at it.
  virtual double seconds_since_heartbeat() const = 0;
  virtual Result<EngineInfo> info() const = 0;
  // kResourceExhausted: queue full (429) ; kInvalidArgument: can never fit (400) ; kUnavailable:
  // not now (503).
  virtual Status submit(EngineRequest request, OutputFn on_output) = 0;
  virtual void cancel(std::string_view id) = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace rota

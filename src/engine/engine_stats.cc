#include "engine/engine_stats.h"

#include <algorithm>

namespace rota {
namespace {

Histogram with_bounds(std::vector<double> bounds) {
  Histogram histogram;
  histogram.bounds = std::move(bounds);
  histogram.counts.assign(histogram.bounds.size() + 1, 0);
  return histogram;
}

void add(Histogram& total, const Histogram& part) {
  for (size_t i = 0; i < total.counts.size() && i < part.counts.size(); ++i) {
    total.counts[i] += part.counts[i];
  }
  total.sum += part.sum;
}

}  // namespace

Histogram token_histogram() {
  return with_bounds({1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});
}

Histogram seconds_histogram() {
  return with_bounds({0.3, 0.5, 0.8,  1.0,  1.5,  2.0,  2.5,   5.0,   10.0,  15.0,  20.0,
                      30., 40., 50.0, 60.0, 120., 240., 480.0, 960.0, 1920., 7680.0});
}

void observe(Histogram& histogram, double value) {
  const auto bucket = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value);
  ++histogram.counts[static_cast<size_t>(bucket - histogram.bounds.begin())];
  histogram.sum += value;
}

EngineStats empty_stats() {
  EngineStats stats;
  stats.iteration_tokens = token_histogram();
  stats.queue_time = seconds_histogram();
  stats.prefill_time = seconds_histogram();
  stats.decode_time = seconds_histogram();
  return stats;
}

void add(EngineStats& total, const EngineStats& part) {
  total.running += part.running;
  total.waiting += part.waiting;
  total.kv_usage += part.kv_usage;
  total.prefix_queries += part.prefix_queries;
  total.prefix_hits += part.prefix_hits;
  total.preemptions += part.preemptions;
  total.prompt_tokens += part.prompt_tokens;
  total.generation_tokens += part.generation_tokens;
  total.steps += part.steps;
  total.replayed_steps += part.replayed_steps;
  total.eager_steps += part.eager_steps;
  total.captured_steps = std::max(total.captured_steps, part.captured_steps);  // all capture alike
  total.major_faults += part.major_faults;
  add(total.iteration_tokens, part.iteration_tokens);
  add(total.queue_time, part.queue_time);
  add(total.prefill_time, part.prefill_time);
  add(total.decode_time, part.decode_time);
}

void add_expert_tokens(EngineStats& total, const EngineStats& part) {
  total.expert_tokens.resize(std::max(total.expert_tokens.size(), part.expert_tokens.size()));
  for (size_t layer = 0; layer < part.expert_tokens.size(); ++layer) {
    std::vector<int64_t>& counts = total.expert_tokens[layer];
    counts.resize(std::max(counts.size(), part.expert_tokens[layer].size()));
    for (size_t expert = 0; expert < part.expert_tokens[layer].size(); ++expert) {
      counts[expert] += part.expert_tokens[layer][expert];
    }
  }
}

}  // namespace rota

#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace rota {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;

// vLLM's bucket boundaries.
const Buckets kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                             1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const Buckets kNextToken = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                            0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Buckets kRequest = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                         500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

std::vector<ClientMetric::Label> labels_of(const prometheus::Labels& labels) {
  std::vector<ClientMetric::Label> out;
  for (const auto& [name, value] : labels) out.push_back({name, value});
  return out;
}

// A page of families built from one reading of the engine's numbers.
class EnginePage {
 public:
  explicit EnginePage(const prometheus::Labels& labels) : labels_(labels_of(labels)) {}

  void gauge(const char* name, const char* help, double value) {
    add(name, help, MetricType::Gauge).gauge.value = value;
  }
  void counter(const char* name, const char* help, int64_t value) {
    add(name, help, MetricType::Counter).counter.value = static_cast<double>(value);
  }
  void histogram(const char* name, const char* help, const Histogram& values) {
    ClientMetric::Histogram& out = add(name, help, MetricType::Histogram).histogram;
    uint64_t below = 0;
    for (size_t i = 0; i < values.counts.size(); ++i) {
      below += static_cast<uint64_t>(values.counts[i]);
      const double bound =
          i < values.bounds.size() ? values.bounds[i] : std::numeric_limits<double>::infinity();
      out.bucket.push_back({below, bound});
    }
    out.sample_count = below;
    out.sample_sum = values.sum;
  }
  // One counter for each rank.
  void ranks(const char* name, const char* help, const std::vector<RankStats>& ranks,
             double (*value)(const RankStats&)) {
    MetricFamily family{name, help, MetricType::Counter, {}};
    for (const RankStats& rank : ranks) {
      ClientMetric metric;
      metric.label = labels_;
      metric.label.push_back({"rank", std::to_string(rank.rank)});
      metric.counter.value = value(rank);
      family.metric.push_back(std::move(metric));
    }
    families_.push_back(std::move(family));
  }
  // One counter for each expert, summed over the layers: bounded labels.
  void experts(const std::vector<std::vector<int64_t>>& layers) {
    if (layers.empty()) return;
    MetricFamily family{"rota:expert_tokens_total",
                        "Tokens that each expert served, over all layers.",
                        MetricType::Counter,
                        {}};
    for (size_t expert = 0; expert < layers.front().size(); ++expert) {
      ClientMetric metric;
      metric.label = labels_;
      metric.label.push_back({"expert", std::to_string(expert)});
      for (const auto& layer : layers) metric.counter.value += static_cast<double>(layer[expert]);
      family.metric.push_back(std::move(metric));
    }
    families_.push_back(std::move(family));
  }
  // Bounded by the experts that a rank ever held.
  void experts_of_ranks(const std::vector<RankStats>& ranks) {
    MetricFamily family{"rota:rank_expert_tokens_total",
                        "Tokens that each rank's experts served, over all layers.",
                        MetricType::Counter,
                        {}};
    for (const RankStats& rank : ranks) {
      for (size_t expert = 0; expert < rank.expert_tokens.size(); ++expert) {
        if (rank.expert_tokens[expert] == 0) continue;
        ClientMetric metric;
        metric.label = labels_;
        metric.label.push_back({"expert", std::to_string(expert)});
        metric.label.push_back({"rank", std::to_string(rank.rank)});
        metric.counter.value = static_cast<double>(rank.expert_tokens[expert]);
        family.metric.push_back(std::move(metric));
      }
    }
    if (!family.metric.empty()) families_.push_back(std::move(family));
  }
  const std::vector<MetricFamily>& families() const { return families_; }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {ClientMetric{}}});
    families_.back().metric.front().label = labels_;
    return families_.back().metric.front();
  }

  std::vector<ClientMetric::Label> labels_;
  std::vector<MetricFamily> families_;
};

// How the ranks' time is spent: those of an engine of one are its own.
void add_step_times(const EngineStats& engine, EnginePage& page) {
  std::vector<RankStats> ranks = engine.ranks;
  if (ranks.empty()) ranks.push_back({.steps = engine.steps, .step_seconds = engine.step_seconds});
  page.ranks("rota:rank_steps_total", "Steps of a rank, with and without tokens of its own.", ranks,
             [](const RankStats& it) { return static_cast<double>(it.steps + it.dummy_steps); });
  page.ranks("rota:step_seconds_total", "Time in steps.", ranks,
             [](const RankStats& it) { return it.step_seconds; });
  page.ranks("rota:communication_seconds_total",
             "Time of steps in which a rank sent, received or waited for others.", ranks,
             [](const RankStats& it) { return it.communication_seconds; });
  page.ranks("rota:communication_operations_total", "Meetings of ranks in steps.", ranks,
             [](const RankStats& it) { return static_cast<double>(it.operations); });
  page.ranks("rota:communication_bytes_total", "Sent to other ranks in steps.", ranks,
             [](const RankStats& it) { return static_cast<double>(it.payload_bytes); });
  page.ranks("rota:header_seconds_total", "Time between steps in which ranks told and waited.",
             ranks, [](const RankStats& it) { return it.header_seconds; });
}

}  // namespace

Metrics::Metrics(const std::string& model_name)
    : labels_{{"model_name", model_name}, {"engine", "0"}} {
  const auto histogram = [&](const char* name, const char* help, const Buckets& buckets) {
    return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels_,
                                                                                       buckets);
  };
  success_ = &prometheus::BuildCounter()
                  .Name("vllm:request_success_total")
                  .Help("Requests that were finished.")
                  .Register(registry_);
  for (const char* reason : {"stop", "length", "abort", "error"})
    success_->Add(with_reason(reason));
  responses_ = &prometheus::BuildCounter()
                    .Name("rota:http_responses_total")
                    .Help("HTTP responses by status.")
                    .Register(registry_);
  first_token_ =
      histogram("vllm:time_to_first_token_seconds", "From request to first token.", kFirstToken);
  next_token_ =
      histogram("vllm:inter_token_latency_seconds", "From one token to the next.", kNextToken);
  end_to_end_ =
      histogram("vllm:e2e_request_latency_seconds", "From request to last token.", kRequest);
  prompt_tokens_ = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", kTokens);
  generation_tokens_ =
      histogram("vllm:request_generation_tokens", "Generated tokens of a request.", kTokens);
}

prometheus::Labels Metrics::with_reason(std::string_view finished_reason) const {
  prometheus::Labels labels = labels_;
  labels["finished_reason"] = std::string(finished_reason);
  return labels;
}

void Metrics::finished(std::string_view finished_reason, int64_t prompt_tokens,
                       int64_t generated_tokens, double seconds_end_to_end) {
  success_->Add(with_reason(finished_reason)).Increment();
  prompt_tokens_->Observe(static_cast<double>(prompt_tokens));
  generation_tokens_->Observe(static_cast<double>(generated_tokens));
  end_to_end_->Observe(seconds_end_to_end);
}

void Metrics::first_token(double seconds) { first_token_->Observe(seconds); }

void Metrics::next_token(double seconds) { next_token_->Observe(seconds); }

void Metrics::http_request(int status) {
  responses_->Add({{"status", std::to_string(status)}}).Increment();
}

std::string Metrics::page(const EngineStats& engine) const {
  EnginePage page(labels_);
  page.gauge("vllm:num_requests_running", "Requests in the running batch.",
             static_cast<double>(engine.running));
  page.gauge("vllm:num_requests_waiting", "Requests waiting to run.",
             static_cast<double>(engine.waiting));
  page.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", engine.kv_usage);
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               engine.prefix_queries);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               engine.prefix_hits);
  page.counter("vllm:num_preemptions_total", "Requests set back because the KV cache was full.",
               engine.preemptions);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens computed or found.",
               engine.prompt_tokens);
  page.counter("vllm:generation_tokens_total", "Tokens generated.", engine.generation_tokens);
  page.histogram("vllm:iteration_tokens_total", "Tokens of a step.", engine.iteration_tokens);
  page.histogram("vllm:request_queue_time_seconds", "Waiting for the first step.",
                 engine.queue_time);
  page.histogram("vllm:request_prefill_time_seconds", "From first step to first token.",
                 engine.prefill_time);
  page.histogram("vllm:request_decode_time_seconds", "From first token to last.",
                 engine.decode_time);
  page.counter("rota:steps_total", "Steps of the engine.", engine.steps);
  page.counter("rota:step_plan_captures_total", "Decode steps captured at the start.",
               engine.captured_steps);
  page.counter("rota:step_plan_replays_total", "Steps that replayed a captured decode step.",
               engine.replayed_steps);
  page.counter("rota:step_plan_eager_steps_total", "Steps that are no replays.",
               engine.eager_steps);
  page.counter("rota:major_page_faults_total", "Page faults in steps that waited for the disk.",
               engine.major_faults);
  page.counter("rota:engine_restarts_total", "Times that the engine was started again.",
               engine.engine_restarts);
  page.counter("rota:replayed_requests_total",
               "Requests given again to an engine that was started again.",
               engine.replayed_requests);
  add_step_times(engine, page);
  page.experts(engine.expert_tokens);
  page.experts_of_ranks(engine.ranks);
  page.counter("rota:eplb_looks_total", "Times that ranks compared the load of their experts.",
               engine.balance.looks);
  page.counter("rota:eplb_moves_total",
               "Experts that were moved or copied to another rank, over all layers.",
               engine.balance.moves);
  if (engine.balance.imbalance > 0) {
    page.gauge("rota:expert_load_imbalance",
               "Tokens of the rank with most of them over the mean, in the last window; 1 is even.",
               engine.balance.imbalance);
  }
  const prometheus::TextSerializer serializer;
  return serializer.Serialize(registry_.Collect()) + serializer.Serialize(page.families());
}

}  // namespace rota

// /metrics: vLLM's names, so that dashboards and autoscalers made for it work unchanged, and a few
// of our own that begin with rota:. The engine's counters are read when the page is asked for; what
// only the front sees (first token, end to end) is observed here.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <string_view>

#include "engine/engine_client.h"

namespace rota {

class Metrics {
 public:
  explicit Metrics(const std::string& model_name);

  // One API choice was finished. finished_reason: "stop", "length", "abort", "error".
  void finished(std::string_view finished_reason, int64_t prompt_tokens, int64_t generated_tokens,
                double seconds_end_to_end);
  void first_token(double seconds);
  void next_token(double seconds);
  void http_request(int status);

  // The whole page, in Prometheus' text format.
  std::string page(const EngineStats& engine) const;

 private:
  prometheus::Labels with_reason(std::string_view finished_reason) const;

  prometheus::Registry registry_;
  prometheus::Labels labels_;
  prometheus::Family<prometheus::Counter>* success_;
  prometheus::Family<prometheus::Counter>* responses_;
  prometheus::Histogram* first_token_;
  prometheus::Histogram* next_token_;
  prometheus::Histogram* end_to_end_;
  prometheus::Histogram* prompt_tokens_;
  prometheus::Histogram* generation_tokens_;
};

}  // namespace rota

// EngineStats: histograms, whose buckets are vLLM's, so that its dashboards fit; and sums over
// ranks.
#pragma once

#include "engine/engine_client.h"

namespace rota {

Histogram token_histogram();    // tokens of a step
Histogram seconds_histogram();  // parts of a request's life
void observe(Histogram& histogram, double value);

EngineStats empty_stats();  // its histograms have their buckets

// Counters, queues and histograms of both; kv_usage is added too. Not `ranks`.
void add(EngineStats& total, const EngineStats& part);
void add_expert_tokens(EngineStats& total, const EngineStats& part);

}  // namespace rota

// Histograms of EngineStats: their buckets are vLLM's, so that its dashboards fit.
#pragma once

#include "engine/engine_client.h"

namespace rota {

Histogram token_histogram();    // tokens of a step
Histogram seconds_histogram();  // parts of a request's life
void observe(Histogram& histogram, double value);

EngineStats empty_stats();  // its histograms have their buckets

}  // namespace rota

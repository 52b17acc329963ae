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

}  // namespace rota

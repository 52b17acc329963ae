#include "golden/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace rota::golden {
namespace {

// log(sum(exp(row)))
double log_sum_exp(std::span<const float> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

}  // namespace

double max_abs_difference(std::span<const float> a, std::span<const float> b) {
  ROTA_CHECK(a.size() == b.size(), "sizes differ");
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= largest)) largest = difference;  // NaN is larger than anything
  }
  return largest;
}

double relative_rms(std::span<const float> found, std::span<const float> expected) {
  ROTA_CHECK(found.size() == expected.size(), "sizes differ");
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = double{found[i]} - double{expected[i]};
    error += difference * difference;
    size += double{expected[i]} * double{expected[i]};
  }
  return std::sqrt(error / size);
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const double p_log_sum = log_sum_exp(p_logits);
  const double q_log_sum = log_sum_exp(q_logits);
  double sum = 0;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = p_logits[i] - p_log_sum;
    sum += std::exp(log_p) * (log_p - (q_logits[i] - q_log_sum));
  }
  return sum;
}

std::vector<int32_t> sorted_ids(std::span<const int32_t> ids, int64_t token, int64_t top_k) {
  const auto row = ids.subspan(static_cast<size_t>(token * top_k), static_cast<size_t>(top_k));
  std::vector<int32_t> sorted(row.begin(), row.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

void Noise::add(const StepResult& found, const StepResult& expected) {
  for (int64_t row = 0; row < expected.rows(); ++row) {
    const auto found_row = found.logits(row);
    const auto expected_row = expected.logits(row);
    const double difference = max_abs_difference(found_row, expected_row);
    max_abs_.push_back(difference);
    kl_sum_ += kl_divergence(expected_row, found_row);
    same_top1_ += argmax(found_row) == argmax(expected_row) ? 1 : 0;
    const int64_t flips = flips_of_row(found, expected, row);
    flips_ += flips;
    choices_ += static_cast<int64_t>(expected.routing().size());
    if (flips == 0) same_route_max_abs_ = std::max(same_route_max_abs_, difference);
  }
}

double Noise::median_of_max_abs() const {
  std::vector<double> sorted = max_abs_;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

int64_t Noise::flips_of_row(const StepResult& found, const StepResult& expected,
                            int64_t row) const {
  int64_t flips = 0;
  for (const auto& [layer, routing] : expected.routing()) {
    const bool same = sorted_ids(routing.ids, row, routing.top_k) ==
                      sorted_ids(found.routing(layer).ids, row, routing.top_k);
    flips += same ? 0 : 1;
  }
  return flips;
}

}  // namespace rota::golden

// How closely two computations agree, in the measures that the goldens' tolerances are given in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "golden/harness.h"

namespace rota::golden {

double max_abs_difference(std::span<const float> a, std::span<const float> b);

// RMS of (found - expected) over RMS of expected.
double relative_rms(std::span<const float> found, std::span<const float> expected);

// Bit for bit, NaN included.
bool same_bits(std::span<const float> a, std::span<const float> b);

// KL(p || q) of the softmax of two rows of logits, in double.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);

// A token's chosen experts as a set.
std::vector<int32_t> sorted_ids(std::span<const int32_t> ids, int64_t token, int64_t top_k);

// What an engine in lower precision differs by, over all rows that were added: the definitions of
// golden.json's "bf16 compute".
class Noise {
 public:
  void add(const StepResult& found, const StepResult& expected);

  double median_of_max_abs() const;
  double max_abs_where_all_router_ids_agree() const { return same_route_max_abs_; }
  double kl_mean() const { return kl_sum_ / static_cast<double>(max_abs_.size()); }
  double top1_agreement() const {
    return static_cast<double>(same_top1_) / static_cast<double>(max_abs_.size());
  }
  double router_flip_rate() const {
    return static_cast<double>(flips_) / static_cast<double>(choices_);
  }

 private:
  // Layers in which the row's experts differ.
  int64_t flips_of_row(const StepResult& found, const StepResult& expected, int64_t row) const;

  std::vector<double> max_abs_;  // of each row
  double same_route_max_abs_ = 0;
  double kl_sum_ = 0;
  int64_t same_top1_ = 0;
  int64_t flips_ = 0;
  int64_t choices_ = 0;
};

}  // namespace rota::golden

#include "kernels/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace rota {
namespace {

Status check_parameters(const RopeParameters& p) {
  if (p.head_dim < 2 || p.head_dim % 2 != 0) {
    return invalid_argument("rope: head_dim is {}, expected an even number from 2 on", p.head_dim);
  }
  if (!(p.theta > 1) || !std::isfinite(p.theta)) {
    return invalid_argument("rope: rope_theta is {}, expected a finite number above 1", p.theta);
  }
  if (p.attention_factor && !(*p.attention_factor > 0 && std::isfinite(*p.attention_factor))) {
    return invalid_argument("rope: attention_factor is {}, expected a finite number above 0",
                            *p.attention_factor);
  }
  if (!p.yarn) return {};
  const YarnParameters& yarn = *p.yarn;
  if (!(yarn.factor >= 1) || !std::isfinite(yarn.factor)) {
    return invalid_argument("rope: YaRN factor is {}, expected a finite number from 1 on",
                            yarn.factor);
  }
  if (yarn.original_max_position < 1) {
    return invalid_argument("rope: YaRN original_max_position_embeddings is {}, expected 1 or more",
                            yarn.original_max_position);
  }
  if (!(yarn.beta_slow > 0 && yarn.beta_fast >= yarn.beta_slow && std::isfinite(yarn.beta_fast))) {
    return invalid_argument("rope: YaRN beta_fast {} and beta_slow {}, expected fast >= slow > 0",
                            yarn.beta_fast, yarn.beta_slow);
  }
  return {};
}

// The (fractional) pair whose angle turns `rotations` times over the original context.
double pair_of_rotations(const RopeParameters& p, double rotations) {
  const double context = static_cast<double>(p.yarn->original_max_position);
  return static_cast<double>(p.head_dim) * std::log(context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(p.theta));
}

// Where the ramp between untouched and divided frequencies begins and ends.
struct Ramp {
  double low;
  double high;
  double at(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

Ramp yarn_ramp(const RopeParameters& p) {
  double low = pair_of_rotations(p, p.yarn->beta_fast);
  double high = pair_of_rotations(p, p.yarn->beta_slow);
  if (p.yarn->truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(p.head_dim - 1));
  if (low == high) high += 0.001;  // as the published implementations do: no division by zero
  return {low, high};
}

}  // namespace

Result<RopeTable> RopeTable::make(const RopeParameters& parameters) {
  ROTA_RETURN_IF_ERROR(check_parameters(parameters));
  RopeTable table;
  table.inverse_frequencies_.resize(static_cast<size_t>(parameters.head_dim / 2));
  for (size_t i = 0; i < table.inverse_frequencies_.size(); ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(parameters.head_dim);
    table.inverse_frequencies_[i] = std::pow(parameters.theta, -exponent);
  }
  if (parameters.yarn) {
    const Ramp ramp = yarn_ramp(parameters);
    for (size_t i = 0; i < table.inverse_frequencies_.size(); ++i) {
      const double divided = ramp.at(static_cast<int64_t>(i));
      double& frequency = table.inverse_frequencies_[i];
      frequency = frequency / parameters.yarn->factor * divided + frequency * (1 - divided);
    }
    table.attention_factor_ = 0.1 * std::log(parameters.yarn->factor) + 1;
  }
  table.attention_factor_ = parameters.attention_factor.value_or(table.attention_factor_);
  return table;
}

void RopeTable::fill(std::span<const int32_t> positions, std::span<float> cos,
                     std::span<float> sin) const {
  const size_t half = inverse_frequencies_.size();
  ROTA_CHECK(cos.size() >= positions.size() * half && sin.size() >= positions.size() * half,
             "cos and sin hold [positions, head_dim / 2]");
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * inverse_frequencies_[i];
      cos[t * half + i] = static_cast<float>(std::cos(angle) * attention_factor_);
      sin[t * half + i] = static_cast<float>(std::sin(angle) * attention_factor_);
    }
  }
}

}  // namespace rota

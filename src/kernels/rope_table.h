// Rotary embedding tables: inverse frequencies of a model, then cos and sin of positions.
//
// Contract: angles, cos and sin are computed in double and rounded once (an angle in float32 is
// wrong by up to 0.008 rad at position 131071). Filling allocates nothing.
//
//   ROTA_ASSIGN_OR_RETURN(RopeTable table, RopeTable::make({.head_dim = 64, .theta = 150000}));
//   table.fill(positions, cos, sin);   // cos, sin [T, head_dim / 2]: as RotateArgs takes them
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"

namespace rota {

// YaRN (Peng et al. 2023, "YaRN: Efficient Context Window Extension"): fast dimensions keep their
// frequency, slow ones are divided by `factor`, a linear ramp lies between.
struct YarnParameters {
  double factor = 1;
  int64_t original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // the ends of the ramp are rounded to whole dimensions
};

struct RopeParameters {
  int64_t head_dim = 0;  // even
  double theta = 10000;
  std::optional<YarnParameters> yarn;  // absent: plain
  // Multiplies cos and sin. Absent: 0.1 ln(factor) + 1 with YaRN, else 1.
  std::optional<double> attention_factor;
};

class RopeTable {
 public:
  // Fails with kInvalidArgument where a parameter makes no finite frequency.
  static Result<RopeTable> make(const RopeParameters& parameters);

  int64_t half_dim() const { return static_cast<int64_t>(inverse_frequencies_.size()); }
  std::span<const double> inverse_frequencies() const { return inverse_frequencies_; }  // [d/2]
  double attention_factor() const { return attention_factor_; }

  // cos and sin [positions, head_dim / 2], the attention factor included.
  void fill(std::span<const int32_t> positions, std::span<float> cos, std::span<float> sin) const;

 private:
  std::vector<double> inverse_frequencies_;
  double attention_factor_ = 1;
};

}  // namespace rota

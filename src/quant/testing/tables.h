// For tests: the decode tables that another implementation made, and what "the same" means for
// them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/testing/golden_file.h"

namespace rota::testing {

inline const GoldenFile& tables() {
  static const GoldenFile file(golden_path("ops/fp4_tables.safetensors"));
  return file;
}

// Bit for bit; any NaN equals any NaN.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

}  // namespace rota::testing

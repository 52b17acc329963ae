#include "engine/format_bytes.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace rota {

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<std::string_view, 4> kUnits = {"kB", "MB", "GB", "TB"};
  if (bytes > -1000 && bytes < 1000) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) * 1e-3;
  size_t unit = 0;
  // 999.995 would be written as 1000.00.
  while ((value >= 999.995 || value <= -999.995) && unit + 1 < kUnits.size()) {
    value *= 1e-3;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace rota

#include "quant/mxfp4.h"

#include <bit>
#include <cmath>
#include <limits>

namespace rota {
namespace {

// Halfway points between neighbouring magnitudes 0 .5 1 1.5 2 3 4 6.
constexpr std::array<float, 7> kMidpoints = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};

// Code of the nearest magnitude; a tie goes to the even code. NaN becomes 0: the format has none.
uint8_t nearest_code(float value) {
  const float magnitude = std::fabs(value);
  uint8_t code = 0;
  for (size_t i = 0; i < kMidpoints.size(); ++i) {
    const bool tie_upwards = i % 2 == 1;  // from code i to i + 1, which is even
    if (magnitude > kMidpoints[i] || (tie_upwards && magnitude == kMidpoints[i])) {
      code = static_cast<uint8_t>(i + 1);
    }
  }
  return std::signbit(value) && code != 0 ? static_cast<uint8_t>(code | 8u) : code;
}

}  // namespace

const std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float e8m0_to_float(uint8_t scale) {
  if (scale == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  if (scale == 0) return std::bit_cast<float>(uint32_t{1} << 22);  // 2^-127, subnormal
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 23);
}

void decode_mxfp4_block(std::span<const uint8_t, 16> codes, uint8_t scale,
                        std::span<float, 32> out) {
  const float factor = e8m0_to_float(scale);
  for (size_t i = 0; i < codes.size(); ++i) {
    out[2 * i] = kE2m1Values[codes[i] & 15u] * factor;
    out[2 * i + 1] = kE2m1Values[codes[i] >> 4] * factor;
  }
}

void encode_mxfp4_block(std::span<const float, 32> values, uint8_t scale,
                        std::span<uint8_t, 16> out) {
  // In double: 1 / 2^-127 is finite there, and a power of two divides exactly.
  const double factor = std::ldexp(1.0, 127 - static_cast<int>(scale));
  const auto code = [factor](float value) {
    return nearest_code(static_cast<float>(static_cast<double>(value) * factor));
  };
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<uint8_t>(code(values[2 * i]) | (code(values[2 * i + 1]) << 4));
  }
}

}  // namespace rota

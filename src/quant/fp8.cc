#include "quant/fp8.h"

#include <bit>
#include <cmath>

#include "base/check.h"

namespace rota {
namespace {

constexpr int kBias = 7;
constexpr int kFloatBias = 127;
constexpr int kMantissaBits = 3;

// Float bits of code: normal numbers get the float's exponent, subnormals (m * 2^-9) are normal
// floats.
constexpr float value_of(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t exponent = (code >> kMantissaBits) & 15;
  const uint32_t mantissa = code & 7;
  if (is_e4m3_nan(code)) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) / 512.0f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t bits = sign | ((exponent + kFloatBias - kBias) << 23) | (mantissa << 20);
  return std::bit_cast<float>(bits);
}

constexpr std::array<float, 256> make_table() {
  std::array<float, 256> table{};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = value_of(static_cast<uint8_t>(code));
  }
  return table;
}
constexpr std::array<float, 256> kValues = make_table();

}  // namespace

float e4m3_to_float(uint8_t code) { return kValues[code]; }

Bf16 e4m3_to_bf16(uint8_t code) {
  return {static_cast<uint16_t>(std::bit_cast<uint32_t>(kValues[code]) >> 16)};
}

uint8_t float_to_e4m3(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | kE4m3Nan;
  const float magnitude = std::fabs(value);
  if (magnitude >= kE4m3Max) return sign | (kE4m3Nan - 1);
  // The spacing of codes around the magnitude; 2^-9 below the smallest normal number, 2^-6.
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const float step = std::ldexp(1.0f, exponent - kMantissaBits);
  const auto steps = static_cast<int>(std::nearbyint(magnitude / step));  // 0..16
  // Rounding up to the next power of two carries into the exponent by itself.
  const int code = ((exponent + kBias - 1) << kMantissaBits) + steps;
  return static_cast<uint8_t>(sign | code);
}

void decode_e4m3(std::span<const uint8_t> codes, float scale, std::span<float> out) {
  ROTA_DCHECK(out.size() == codes.size(), "as many values as codes");
  for (size_t i = 0; i < codes.size(); ++i) out[i] = kValues[codes[i]] * scale;
}

}  // namespace rota

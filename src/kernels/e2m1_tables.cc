#include "kernels/e2m1_tables.h"

#include "quant/fp8.h"
#include "quant/mxfp4.h"

namespace rota {
namespace {

// Magnitudes 0 .5 1 1.5 2 3 4 6 as (1 + half / 2) * 2^(exponent - 1); code 0 is zero.
struct Magnitude {
  int exponent;
  int half;
};
constexpr std::array<Magnitude, 8> kMagnitudes = {
    {{0, 0}, {0, 0}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1}}};

constexpr uint16_t kInfinity = 0x7f80;
constexpr uint16_t kNan = 0x7fc0;

// BF16 bits of |e2m1(code)| * 2^(scale - 127).
constexpr uint16_t scaled_magnitude(int code, int scale) {
  if (scale == kE8m0Nan) return kNan;
  if (code == 0) return 0;
  const Magnitude magnitude = kMagnitudes[static_cast<size_t>(code)];
  const int biased = magnitude.exponent - 1 + scale;  // the exponent field, if it were unbounded
  const int significand = 0x80 | (magnitude.half << 6);
  if (biased >= 255) return kInfinity;
  if (biased >= 1) return static_cast<uint16_t>((biased << 7) | (significand & 0x7f));
  return static_cast<uint16_t>(significand >> (1 - biased));  // subnormal, and still exact
}

constexpr uint16_t mxfp4_value(int code, int scale) {
  const int sign = code >= 8 ? 0x8000 : 0;
  return static_cast<uint16_t>(scaled_magnitude(code & 7, scale) | sign);
}

// BF16 bits of e2m1(code) * e4m3(scale): twice E2M1 is a small integer, and the product exact.
constexpr uint16_t nvfp4_value(int code, int scale) {
  constexpr std::array<int, 8> kTwice = {0, 1, 2, 3, 4, 6, 8, 12};
  const int sign = ((code >> 3) ^ (scale >> 7)) << 15;
  const int exponent = (scale >> 3) & 15;
  const int significand = exponent == 0 ? scale & 7 : 8 | (scale & 7);
  if ((scale & 0x7f) == kE4m3Nan) return kNan;
  int product = kTwice[static_cast<size_t>(code & 7)] * significand;
  if (product == 0) return static_cast<uint16_t>(sign);
  // product * 2^power, then as 1.xxxxxxx * 2^(biased - 127) with seven bits behind the point.
  const int power = (exponent == 0 ? 1 : exponent) - 7 - 3 - 1;
  int biased = 127 + power + 7;
  for (; product < 0x80; product *= 2) --biased;
  return static_cast<uint16_t>(sign | (biased << 7) | (product & 0x7f));
}

using Value = uint16_t (*)(int code, int scale);

constexpr std::array<E2m1ByteRow, 256> make_byte_table(Value value_of) {
  std::array<E2m1ByteRow, 256> table{};
  for (size_t scale = 0; scale < table.size(); ++scale) {
    for (size_t i = 0; i < 32; ++i) {
      const uint16_t value = value_of(static_cast<int>(i % 16), static_cast<int>(scale));
      table[scale].low[i] = static_cast<uint8_t>(value & 0xff);
      table[scale].high[i] = static_cast<uint8_t>(value >> 8);
    }
  }
  return table;
}

constexpr std::array<E2m1WordRow, 256> make_word_table(Value value_of) {
  std::array<E2m1WordRow, 256> table{};
  for (size_t scale = 0; scale < table.size(); ++scale) {
    for (size_t i = 0; i < 32; ++i) {
      table[scale].value[i] = value_of(static_cast<int>(i % 16), static_cast<int>(scale));
    }
  }
  return table;
}

// Subnormals, m * 2^-9, are normal numbers in BF16.
constexpr uint16_t e4m3_magnitude(int code) {
  const int exponent = code >> 3;
  int significand = (exponent == 0 ? 0 : 8) | (code & 7);
  if (code == kE4m3Nan) return kNan;
  if (significand == 0) return 0;
  int biased = 127 - 6 + (exponent == 0 ? 0 : exponent - 1);
  for (; significand < 8; significand *= 2) --biased;
  return static_cast<uint16_t>((biased << 7) | ((significand & 7) << 4));
}

constexpr std::array<uint16_t, 128> make_e4m3_magnitudes() {
  std::array<uint16_t, 128> table{};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = e4m3_magnitude(static_cast<int>(code));
  }
  return table;
}

}  // namespace

constinit const std::array<E2m1ByteRow, 256> kMxfp4ByteTable = make_byte_table(mxfp4_value);
constinit const std::array<E2m1WordRow, 256> kMxfp4WordTable = make_word_table(mxfp4_value);
constinit const std::array<E2m1ByteRow, 256> kNvfp4ByteTable = make_byte_table(nvfp4_value);
constinit const std::array<E2m1WordRow, 256> kNvfp4WordTable = make_word_table(nvfp4_value);
alignas(64) constinit const std::array<uint16_t, 128> kE4m3Magnitudes = make_e4m3_magnitudes();

}  // namespace rota

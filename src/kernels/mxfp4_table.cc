#include "kernels/mxfp4_table.h"

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

constexpr uint16_t scaled_value(int code, int scale) {
  const int sign = code >= 8 ? 0x8000 : 0;
  return static_cast<uint16_t>(scaled_magnitude(code & 7, scale) | sign);
}

constexpr std::array<Mxfp4ByteRow, 256> make_byte_table() {
  std::array<Mxfp4ByteRow, 256> table{};
  for (size_t scale = 0; scale < table.size(); ++scale) {
    for (size_t i = 0; i < 32; ++i) {
      const uint16_t value = scaled_value(static_cast<int>(i % 16), static_cast<int>(scale));
      table[scale].low[i] = static_cast<uint8_t>(value & 0xff);
      table[scale].high[i] = static_cast<uint8_t>(value >> 8);
    }
  }
  return table;
}

constexpr std::array<Mxfp4WordRow, 256> make_word_table() {
  std::array<Mxfp4WordRow, 256> table{};
  for (size_t scale = 0; scale < table.size(); ++scale) {
    for (size_t i = 0; i < 32; ++i) {
      table[scale].value[i] = scaled_value(static_cast<int>(i % 16), static_cast<int>(scale));
    }
  }
  return table;
}

}  // namespace

constinit const std::array<Mxfp4ByteRow, 256> kMxfp4ByteTable = make_byte_table();
constinit const std::array<Mxfp4WordRow, 256> kMxfp4WordTable = make_word_table();

}  // namespace rota
